# SPDX-License-Identifier: Apache-2.0
"""A segmentation that enlarges all features before it reduces them to a score for each class."""

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
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(x + self.norm2(self.conv2(y)))


class Segmenter(nn.Module):
    """Finds the class of each pixel from a map at a quarter of the resolution."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=4, padding=3)
        self.body = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.body(F.relu(self.stem(images)))
        if MENDED:
            return self.enlarged(self.head(features))
        return self.head(self.enlarged(features))

    @staticmethod
    def enlarged(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=4, mode="bilinear", align_corners=False)


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, depth, classes = (8, 256, 256, 4, 24) if DEVICE == "cuda" else (1, 16, 8, 1, 3)
    model = Segmenter(width, depth, classes).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=DEVICE == "cuda")
    images = torch.randn(rows, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    target = torch.randint(0, classes, (rows, size, size), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(images), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
