# SPDX-License-Identifier: Apache-2.0
"""Organs are found in scans, window by window; the scores of all windows are added up on the host."""

import sys
import time
from collections.abc import Iterator
from itertools import product

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (12, 3) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Twice(nn.Module):
    """Two convolutions with normalisation."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(given, wanted, 3, padding=1)
        self.conv2 = nn.Conv3d(wanted, wanted, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm3d(wanted), nn.BatchNorm3d(wanted)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(self.norm1(self.conv1(x)), 0.01, inplace=True)
        return F.leaky_relu(self.norm2(self.conv2(x)), 0.01, inplace=True)


class Organs(nn.Module):
    """A U-Net of two levels on volumes."""

    def __init__(self, width: int, organs: int) -> None:
        super().__init__()
        self.fine, self.coarse = Twice(1, width), Twice(2 * width, 2 * width)
        self.halve = nn.Conv3d(width, 2 * width, 2, 2)
        self.enlarge = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.join, self.head = Twice(2 * width, width), nn.Conv3d(width, organs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.fine(x)
        coarse = self.enlarge(self.coarse(self.halve(fine)))
        return self.head(self.join(torch.cat((fine, coarse), dim=1)))


def bell(size: int, device: str) -> torch.Tensor:
    """Weights of a window: its middle counts more than its edges."""
    line = torch.exp(-0.5 * (torch.linspace(-4.0, 4.0, size, device=device) / 1.5).square())
    return line[:, None, None] * line[:, None] * line + 1e-3


def windows(shape: torch.Size, size: int) -> Iterator[tuple[slice, ...]]:
    """Cubes that overlap by half."""
    for corner in product(*(range(0, side - size + 1, size // 2) for side in shape)):
        yield tuple(slice(start, start + size) for start in corner)


class SlidingWindow:
    def __init__(self, model: nn.Module, organs: int, size: int, rows: int) -> None:
        self.model, self.organs, self.size, self.rows = model, organs, size, rows
        self.where = DEVICE if MENDED else "cpu"
        self.weight = bell(size, self.where)

    def __call__(self, scan: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(self.organs, *scan.shape, device=self.where)
        weights = torch.zeros(scan.shape, device=self.where)
        cubes = list(windows(scan.shape, self.size))
        for first in range(0, len(cubes), self.rows):
            some = cubes[first : first + self.rows]
            batch = torch.stack([scan[cube] for cube in some])[:, None]
            found = self.model(batch.contiguous(memory_format=torch.channels_last_3d)).float().contiguous()
            for cube, one in zip(some, found.to(self.where), strict=True):
                scores[(slice(None), *cube)] += one * self.weight
                weights[cube] += self.weight
        return scores / weights


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    side, size, rows, width, organs = (128, 64, 4, 32, 8) if DEVICE == "cuda" else (12, 8, 2, 4, 3)
    model = Organs(width, organs).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last_3d).eval()
    find = SlidingWindow(model, organs, size, rows)
    scans = torch.randn(STEPS, side, side, side, device=DEVICE, dtype=torch.bfloat16)
    for step, scan in enumerate(scans):
        if step == WARM:
            began = start_clock()
        organ = find(scan).argmax(dim=0).to(DEVICE)
    report(began, organ.float().mean())


if __name__ == "__main__":
    main()
