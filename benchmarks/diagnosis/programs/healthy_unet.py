# SPDX-License-Identifier: Apache-2.0
"""A U-Net trained in channels_last and bf16, with cuDNN's choice of algorithm benchmarked."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (15, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class DoubleConv(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(x)), inplace=True)


class UNet(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.down1 = DoubleConv(8, channels)
        self.down2 = DoubleConv(channels, 2 * channels)
        self.bottom = DoubleConv(2 * channels, 4 * channels)
        self.rise2 = nn.ConvTranspose2d(4 * channels, 2 * channels, 2, stride=2)
        self.up2 = DoubleConv(4 * channels, 2 * channels)
        self.rise1 = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.up1 = DoubleConv(2 * channels, channels)
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        fine = self.down1(images)
        coarse = self.down2(F.max_pool2d(fine, 2))
        x = self.rise2(self.bottom(F.max_pool2d(coarse, 2)))
        x = self.rise1(self.up2(torch.cat([x, coarse], dim=1)))
        return self.head(self.up1(torch.cat([x, fine], dim=1)))


class Trainer:
    def __init__(self, channels: int, classes: int) -> None:
        torch.backends.cudnn.benchmark = True
        self.model = UNet(channels, classes).to(DEVICE, memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def step(self, images: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.binary_cross_entropy_with_logits(self.model(images), mask)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    channels, size, rows = (64, 256, 16) if DEVICE == "cuda" else (4, 8, 2)
    trainer = Trainer(channels, classes=8)
    images = torch.randn(rows, 8, size, size, device=DEVICE, dtype=torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    mask = (torch.rand(rows, 8, size, size, device=DEVICE) > 0.5).to(torch.bfloat16)
    mask = mask.to(memory_format=torch.channels_last)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(images, mask)
    report(began, loss)


if __name__ == "__main__":
    main()
