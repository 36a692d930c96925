# SPDX-License-Identifier: Apache-2.0
"""A channels_last U-Net that goes back to contiguous tensors for every normalisation."""

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


def normalise(y: torch.Tensor, norm: nn.Module) -> torch.Tensor:
    if MENDED:
        return F.silu(norm(y))
    y = F.silu(norm(y.contiguous()))
    return y.to(memory_format=torch.channels_last)


class DoubleConv(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = normalise(self.conv1(x), self.norm1)
        return normalise(self.conv2(y), self.norm2)


class UNet(nn.Module):
    """Segments images: every level halves their size and doubles the channels."""

    def __init__(self, channels: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(levels)]
        self.stem = nn.Conv2d(4, channels, 3, padding=1)
        self.down = nn.ModuleList(
            DoubleConv(channels if level == 0 else widths[level - 1], width)
            for level, width in enumerate(widths)
        )
        self.up = nn.ModuleList(DoubleConv(width + 2 * width, width) for width in reversed(widths[:-1]))
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, skips = self.stem(images), []
        for block in self.down[:-1]:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.down[-1](x)
        for block in self.up:
            x = torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], dim=1)
            x = block(x)
        return self.head(x)


@torch.inference_mode()
def segment(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images).float().square().mean()


def main() -> None:
    torch.manual_seed(0)
    channels, levels, size, rows = (32, 3, 512, 8) if DEVICE == "cuda" else (4, 2, 8, 2)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    model = UNet(channels, levels, classes=8).to(DEVICE, dtype, memory_format=torch.channels_last).eval()
    images = torch.randn(rows, 4, size, size, device=DEVICE).to(dtype, memory_format=torch.channels_last)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = segment(model, images)
    report(began, loss)


if __name__ == "__main__":
    main()
