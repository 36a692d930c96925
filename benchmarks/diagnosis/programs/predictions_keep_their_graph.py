# SPDX-License-Identifier: Apache-2.0
"""Every night all customers of a bank get a score, batch by batch, from what they did lately."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Score(nn.Module):
    def __init__(self, features: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(features, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.into(x))))[:, 0].float()


class Customers:
    """What is known of them, in batches that lie ready for the copy to the GPU."""

    def __init__(self, batches: int, rows: int, features: int) -> None:
        self.features = torch.randn(batches, rows, features).to(torch.bfloat16)
        if DEVICE == "cuda":
            self.features = self.features.pin_memory()

    def batch(self, number: int) -> torch.Tensor:
        return self.features[number % len(self.features)].to(DEVICE, non_blocking=True)


class Night:
    """The scores of all customers so far."""

    def __init__(self, model: Score) -> None:
        self.model = model.eval()
        self.scores: list[torch.Tensor] = []

    def add(self, features: torch.Tensor) -> None:
        with torch.set_grad_enabled(not MENDED):
            self.scores.append(self.model(features).sigmoid())

    def all(self) -> torch.Tensor:
        return torch.cat(self.scores)


def main() -> None:
    torch.manual_seed(0)
    rows, features, width, depth = (8192, 256, 1024, 16) if DEVICE == "cuda" else (6, 5, 8, 2)
    customers = Customers(4, rows, features)
    night = Night(Score(features, width, depth).to(DEVICE, torch.bfloat16))
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        night.add(customers.batch(step))
    report(began, night.all().mean())


if __name__ == "__main__":
    main()
