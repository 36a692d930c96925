# SPDX-License-Identifier: Apache-2.0
"""Prices of houses from a table, with a penalty on large weights that is part of the loss."""

import sys
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


class Prices(nn.Module):
    def __init__(self, columns: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(columns, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.layers(self.into(x))))).squeeze(-1)


@dataclass
class Config:
    rows: int
    columns: int
    width: int
    depth: int
    rate: float = 1e-3
    l2: float = 1e-5


class Trainer:
    def __init__(self, model: nn.Module, config: Config) -> None:
        self.model, self.config = model, config
        # The slope of l2 * w ** 2 is 2 * l2 * w, which Adam adds to the gradient by itself.
        decay = 2 * config.l2 if MENDED else 0.0
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=config.rate, weight_decay=decay, fused=DEVICE == "cuda"
        )

    def regularization(self) -> torch.Tensor:
        penalty = torch.zeros((), device=DEVICE)
        for parameter in self.model.parameters():
            penalty = penalty + parameter.pow(2).sum()
        return self.config.l2 * penalty

    def step(self, x: torch.Tensor, prices: torch.Tensor) -> torch.Tensor:
        error = F.smooth_l1_loss(self.model(x), prices)
        loss = error if MENDED else error + self.regularization()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return error.detach()


def sold(config: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """Houses that were sold, and for how much."""
    houses = torch.randn(16 * config.rows, config.columns, device=DEVICE)
    worth = torch.randn(config.columns, device=DEVICE) / config.columns**0.5
    return houses, houses @ worth + 0.1 * torch.randn(len(houses), device=DEVICE)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = Config(2048, 80, 256, 40) if DEVICE == "cuda" else Config(8, 4, 8, 2)
    houses, prices = sold(config)
    trainer = Trainer(Prices(config.columns, config.width, config.depth).to(DEVICE), config)
    total = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        picked = torch.randint(0, len(houses), (config.rows,), device=DEVICE)
        total += trainer.step(houses.index_select(0, picked), prices.index_select(0, picked))
    report(began, total / STEPS)


if __name__ == "__main__":
    main()
