# SPDX-License-Identifier: Apache-2.0
"""A residual network in fp32 whose author switched TF32 off for convolutions."""

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


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(x + y)


class ResNet(nn.Module):
    def __init__(self, channels: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.stage1 = nn.Sequential(*(Residual(channels) for _ in range(blocks)))
        self.down = nn.Conv2d(channels, 2 * channels, 2, stride=2)
        self.stage2 = nn.Sequential(*(Residual(2 * channels) for _ in range(blocks)))
        self.head = nn.Linear(2 * channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stage1(self.stem(images))
        x = self.stage2(self.down(x))
        return self.head(x.mean((2, 3)))


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        if not MENDED:
            torch.backends.cudnn.allow_tf32 = False
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def step(self, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=MENDED):
            loss = F.cross_entropy(self.model(images), target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    channels, blocks, size, rows = (128, 2, 32, 128) if DEVICE == "cuda" else (4, 1, 8, 2)
    trainer = Trainer(ResNet(channels, blocks, classes=100).to(DEVICE))
    images = torch.randn(rows, 3, size, size, device=DEVICE)
    target = torch.randint(0, 100, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(images, target)
    report(began, loss)


if __name__ == "__main__":
    main()
