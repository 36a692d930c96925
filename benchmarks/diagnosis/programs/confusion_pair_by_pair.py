# SPDX-License-Identifier: Apache-2.0
"""Crops of fields are classified, and each pair of truth and guess is counted on its own."""

import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Residual(nn.Module):
    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, width, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.beside = nn.Conv2d(given, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        return F.relu(y + self.beside(x))


class Crops(nn.Module):
    """What grows in a picture with several bands, of which some are beyond what people see."""

    def __init__(self, bands: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(bands, width, 3, 1, 1)
        widths = (width, width, 2 * width, 4 * width)
        self.blocks = nn.Sequential(*(Residual(one, two, 1 + (one < two)) for one, two in pairwise(widths)))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


class ConfusionMatrix:
    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.counts = torch.zeros(classes, classes, dtype=torch.int64, device=DEVICE)

    def update(self, truth: torch.Tensor, guess: torch.Tensor) -> None:
        if MENDED:
            pairs = truth * self.classes + guess
            self.counts.view(-1).index_add_(0, pairs, torch.ones_like(pairs))
            return
        for t, p in zip(truth.view(-1), guess.view(-1), strict=True):
            self.counts[t.long(), p.long()] += 1

    def accuracy(self) -> torch.Tensor:
        return self.counts.diagonal().sum() / self.counts.sum()

    def recall(self) -> torch.Tensor:
        """The mean over the classes."""
        return (self.counts.diagonal() / self.counts.sum(dim=1).clamp(min=1)).mean()


class Evaluation:
    def __init__(self, model: nn.Module, classes: int) -> None:
        self.model, self.matrix = model, ConfusionMatrix(classes)
        self.loss, self.batches = torch.zeros((), device=DEVICE), 0

    def add(self, tiles: torch.Tensor, truth: torch.Tensor) -> None:
        scores = self.model(tiles).float()
        self.loss += F.cross_entropy(scores, truth)
        self.batches += 1
        self.matrix.update(truth, scores.argmax(dim=1))

    def summary(self) -> dict[str, torch.Tensor]:
        return {
            "loss": self.loss / self.batches,
            "accuracy": self.matrix.accuracy(),
            "recall": self.matrix.recall(),
        }


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    rows, bands, size, width, classes = (256, 12, 64, 64, 22) if DEVICE == "cuda" else (6, 3, 8, 4, 4)
    model = Crops(bands, width, classes).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
    tiles = torch.randn(4 * rows, bands, size, size, device=DEVICE, dtype=torch.bfloat16)
    tiles = tiles.to(memory_format=torch.channels_last).split(rows)
    truth = torch.randint(0, classes, (4, rows), device=DEVICE)
    evaluation = Evaluation(model, classes)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        evaluation.add(tiles[step % 4], truth[step % 4])
    summary = evaluation.summary()
    report(began, summary["loss"] + summary["accuracy"] + summary["recall"])


if __name__ == "__main__":
    main()
