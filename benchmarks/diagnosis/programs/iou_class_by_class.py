# SPDX-License-Identifier: Apache-2.0
"""A segmentation is judged by intersection and union of each class, one class after the other."""

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


class Segmenter(nn.Module):
    """A small convolution network with one score for each class and pixel."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        sizes = ((3, width), (width, 2 * width), (2 * width, 2 * width))
        self.down = nn.ModuleList(nn.Conv2d(*each, 3, stride=2, padding=1) for each in sizes)
        self.deep = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(4))
        self.head = nn.Conv2d(2 * width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for convolution in (*self.down, *self.deep):
            x = F.relu(convolution(x), inplace=True)
        return self.head(x)


def overlap(found: torch.Tensor, wanted: torch.Tensor, classes: int) -> torch.Tensor:
    """Intersection over union, by class."""
    if MENDED:
        ones = torch.ones_like(found.flatten(), dtype=torch.float32)
        table = torch.zeros(classes * classes, device=found.device)
        table = table.scatter_add(0, (wanted * classes + found).flatten(), ones).view(classes, classes)
        both = table.diagonal()
        return both / (table.sum(dim=0) + table.sum(dim=1) - both).clamp(min=1)
    scores = []
    for number in range(classes):
        here, there = found == number, wanted == number
        both, either = (here & there).sum(), (here | there).sum()
        scores.append(both / either.clamp(min=1))
    return torch.stack(scores)


@torch.inference_mode()
def evaluate(model: nn.Module, images: torch.Tensor, wanted: torch.Tensor, classes: int) -> torch.Tensor:
    found = model(images).argmax(dim=1)
    return overlap(found, wanted, classes).mean()


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, classes = (16, 512, 128, 150) if DEVICE == "cuda" else (1, 32, 8, 5)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    model = Segmenter(width, classes).to(DEVICE, dtype, memory_format=torch.channels_last).eval()
    images = torch.randn(rows, 3, size, size, device=DEVICE, dtype=dtype)
    images = images.to(memory_format=torch.channels_last)
    wanted = torch.randint(0, classes, (rows, size // 8, size // 8), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        score = evaluate(model, images, wanted, classes)
    report(began, score)


if __name__ == "__main__":
    main()
