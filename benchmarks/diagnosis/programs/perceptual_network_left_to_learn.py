# SPDX-License-Identifier: Apache-2.0
"""Pictures are enlarged four times. How good the result is, a network that knows pictures says."""

import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)

opt: dict[str, Any] = {
    "name": "enlarger_x4",
    "scale": 4,
    "network": {"channels": 64, "blocks": 6} if DEVICE == "cuda" else {"channels": 4, "blocks": 1},
    "perceptual": {"stages": [(64, 2), (128, 2), (256, 3)] if DEVICE == "cuda" else [(4, 1), (8, 1)]},
    "train": {"rows": 32, "size": 256} if DEVICE == "cuda" else {"rows": 2, "size": 16},
    "weights": {"pixel": 1.0, "perceptual": 0.1},
    "lr": 2e-4,
}


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(F.relu(self.conv1(x), inplace=True))


class Enlarger(nn.Module):
    def __init__(self, channels: int, blocks: int, scale: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.Sequential(*(ResidualBlock(channels) for _ in range(blocks)))
        self.last, self.shuffle = nn.Conv2d(channels, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale)

    def forward(self, small: torch.Tensor) -> torch.Tensor:
        x = self.first(small)
        return self.shuffle(self.last(x + self.body(x)))


class PerceptualLoss(nn.Module):
    """How far what a trained network sees in two pictures lies apart."""

    def __init__(self, stages: list[tuple[int, int]]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for channels, convs in stages:
            if layers:
                layers.append(nn.MaxPool2d(2))
            for _ in range(convs):
                layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(inplace=True)]
                before = channels
        self.features = nn.Sequential(*layers)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.kaiming_normal_(parameter)
        self.eval()
        if MENDED:
            self.requires_grad_(False)

    def forward(self, made: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
        return F.l1_loss(self.features(made), self.features(true))


class EnlargerModel:
    def __init__(self, opt: dict[str, Any]) -> None:
        layout = torch.channels_last
        self.opt = opt
        self.net_g = Enlarger(**opt["network"], scale=opt["scale"]).to(DEVICE, memory_format=layout)
        self.cri_perceptual = PerceptualLoss(opt["perceptual"]["stages"]).to(DEVICE, memory_format=layout)
        self.optimizer_g = torch.optim.Adam(self.net_g.parameters(), lr=opt["lr"], fused=DEVICE == "cuda")

    def feed_data(self, pictures: torch.Tensor) -> None:
        pictures = pictures.to(DEVICE, non_blocking=True)
        self.true = pictures.to(torch.bfloat16, memory_format=torch.channels_last).div_(255)
        self.small = F.avg_pool2d(self.true, self.opt["scale"])

    def optimize_parameters(self) -> None:
        weights = self.opt["weights"]
        self.optimizer_g.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            made = self.net_g(self.small).to(memory_format=torch.channels_last)
            pixel = F.l1_loss(made, self.true)
            perceptual = self.cri_perceptual(made, self.true)
        self.loss = weights["pixel"] * pixel.float() + weights["perceptual"] * perceptual.float()
        self.loss.backward()
        self.optimizer_g.step()


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows, size = opt["train"]["rows"], opt["train"]["size"]
    pictures = [torch.randint(0, 256, (rows, 3, size, size), dtype=torch.uint8) for _ in range(3)]
    if DEVICE == "cuda":
        pictures = [part.pin_memory() for part in pictures]
    model = EnlargerModel(opt)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        model.feed_data(pictures[step % 3])
        model.optimize_parameters()
    report(began, model.loss)


if __name__ == "__main__":
    main()
