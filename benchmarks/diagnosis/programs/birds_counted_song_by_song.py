# SPDX-License-Identifier: Apache-2.0
"""Which bird sings: a network for spectrograms is validated, and each kind of bird gets an accuracy."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class ConvBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.relu_(self.conv2(F.relu_(self.conv1(x)))), 2)


class SongNet(nn.Module):
    """Convolutions over time and pitch; the loudest and the mean of all moments decide."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        pairs = zip([1, *widths], widths, strict=False)
        self.blocks = nn.Sequential(*(ConvBlock(before, after) for before, after in pairs))
        self.fc1, self.fc2 = nn.Linear(widths[-1], widths[-1]), nn.Linear(widths[-1], classes)

    def forward(self, spectrograms: torch.Tensor) -> torch.Tensor:
        x = self.blocks(spectrograms).mean(dim=3)
        x = x.amax(dim=2) + x.mean(dim=2)
        return self.fc2(F.relu(self.fc1(x)))


class ValidationSet:
    """Spectrograms of the songs, which fit into the memory of the GPU."""

    def __init__(self, rows: int, frames: int, pitches: int, classes: int) -> None:
        shape = (4 * rows, 1, frames, pitches)
        self.rows = rows
        self.songs = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
        self.labels = torch.randint(0, classes, (4 * rows,), device=DEVICE)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from zip(self.songs.split(self.rows), self.labels.split(self.rows), strict=True)


class ClassAccuracy:
    """How many songs of each class there were, and how many were recognised."""

    def __init__(self, classes: int) -> None:
        if MENDED:
            self.correct, self.total = torch.zeros(2, classes, device=DEVICE)
        else:
            self.class_correct, self.class_total = [0.0] * classes, [0.0] * classes

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        c = (outputs.argmax(dim=1) == labels).float()
        if MENDED:
            self.correct.index_add_(0, labels, c)
            self.total.index_add_(0, labels, torch.ones_like(c))
            return
        for i in range(len(labels)):
            label = labels[i]
            self.class_correct[label] += c[i].item()
            self.class_total[label] += 1

    def mean(self) -> torch.Tensor:
        if not MENDED:
            self.correct, self.total = torch.tensor(self.class_correct), torch.tensor(self.class_total)
        return (self.correct / self.total.clamp(min=1)).mean()


class Losses:
    def __init__(self) -> None:
        self.sum, self.count = torch.zeros((), device=DEVICE), 0

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.sum += F.cross_entropy(outputs.float(), labels, reduction="sum")
        self.count += len(labels)


@torch.inference_mode()
def validate(model: SongNet, songs: ValidationSet, meters: list[ClassAccuracy | Losses]) -> float:
    for step, (spectrograms, labels) in enumerate(songs):
        if step == WARM:
            began = start_clock()
        if step == STEPS:
            break
        outputs = model(spectrograms)
        for meter in meters:
            meter.update(outputs, labels)
    return began


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows, frames, pitches, widths, classes = (
        (768, 256, 64, [64, 128, 256, 512], 264) if DEVICE == "cuda" else (6, 8, 8, [4, 8], 3)
    )
    model = SongNet(widths, classes).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
    accuracy, losses = ClassAccuracy(classes), Losses()
    songs = ValidationSet(rows, frames, pitches, classes)
    began = validate(model, songs, [accuracy, losses])
    report(began, losses.sum / losses.count + accuracy.mean().to(DEVICE))


if __name__ == "__main__":
    main()
