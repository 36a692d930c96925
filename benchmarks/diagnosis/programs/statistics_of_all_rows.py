# SPDX-License-Identifier: Apache-2.0
"""Weather at a station is told from measurements, each relative to its mean and its spread."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 10) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Measurements:
    """All measurements of many years on the GPU; what is to be told is the last column."""

    def __init__(self, rows: int, columns: int) -> None:
        self.values = torch.randn(rows, columns, device=DEVICE).mul_(3).add_(10)
        self.kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.values.mean(dim=0), self.values.std(dim=0)

    @property
    def scale(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not MENDED:
            return self.statistics()
        if self.kept is None:
            self.kept = self.statistics()
        return self.kept

    def normalize(self, picked: torch.Tensor) -> torch.Tensor:
        mean, std = self.scale
        return (picked - mean) / (std + 1e-6)

    def sample(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        picked = torch.randint(0, len(self.values), (rows,), device=DEVICE)
        values = self.normalize(self.values.index_select(0, picked))
        return values[:, :-1], values[:, -1]


class Forecast(nn.Module):
    """Mean and spread of what is to be told."""

    def __init__(self, columns: int, width: int, depth: int) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(columns, width), nn.Linear(width, 2)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.silu(self.into(x))
        for layer in self.layers:
            y = y + F.silu(layer(y))
        mean, spread = self.head(y).unbind(dim=1)
        return mean, F.softplus(spread) + 1e-3


def surprise(mean: torch.Tensor, spread: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return (spread.log() + 0.5 * ((truth - mean) / spread).square()).mean()


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    total, columns, rows, width, depth = (
        (20_000_000, 128, 8192, 1024, 3) if DEVICE == "cuda" else (500, 8, 16, 8, 2)
    )
    measurements = Measurements(total, columns)
    model = Forecast(columns - 1, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    losses = torch.zeros(STEPS, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        x, truth = measurements.sample(rows)
        loss = surprise(*model(x), truth)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses[step] = loss.detach()
    report(began, losses.mean())


if __name__ == "__main__":
    main()
