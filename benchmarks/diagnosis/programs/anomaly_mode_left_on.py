# SPDX-License-Identifier: Apache-2.0
"""Autograd's search for NaN, switched on for a bug that is long fixed."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Settings:
    width: int = 768 if DEVICE == "cuda" else 16
    layers: int = 12 if DEVICE == "cuda" else 2
    rows: int = 8192 if DEVICE == "cuda" else 8
    classes: int = 100
    find_nans: bool = not MENDED


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.value = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = F.silu(self.gate(y)) * self.value(y)
        return x + self.out(y)


class Run:
    """A model with its optimizer and data."""

    def __init__(self, settings: Settings) -> None:
        torch.autograd.set_detect_anomaly(settings.find_nans)
        self.settings = settings
        layers = [Mixer(settings.width) for _ in range(settings.layers)]
        self.model = nn.Sequential(*layers, nn.Linear(settings.width, settings.classes)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        x = torch.randn(self.settings.rows, self.settings.width, device=DEVICE)
        target = torch.randint(0, self.settings.classes, (self.settings.rows,), device=DEVICE)
        while True:
            yield x, target

    def train_on(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(self.model(x), target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    run = Run(Settings())
    batches = run.batches()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = run.train_on(*next(batches))
    report(began, loss)


if __name__ == "__main__":
    main()
