# SPDX-License-Identifier: Apache-2.0
"""The price of flats by a small network, whose width, rate and decay are searched for by trying."""

import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (14, 3) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


@dataclass(frozen=True)
class Choice:
    width: int
    rate: float
    decay: float

    @staticmethod
    def draw(chance: random.Random, widths: tuple[int, ...]) -> "Choice":
        return Choice(chance.choice(widths), 10 ** chance.uniform(-4, -2), 10 ** chance.uniform(-4, -1))


@dataclass(frozen=True)
class Table:
    """What is known of flats, and their prices. The first ones are learned from, the others judge."""

    known: torch.Tensor
    price: torch.Tensor
    cut: int

    @staticmethod
    def read(path: Path) -> "Table":
        numbers = np.loadtxt(path, delimiter=",", dtype=np.float32, skiprows=1)
        table = torch.from_numpy(numbers).to(DEVICE)
        table = (table - table.mean(dim=0)) / table.std(dim=0)
        return Table(table[:, :-1].contiguous(), table[:, -1:].contiguous(), 4 * len(table) // 5)


def write_table(path: Path, rows: int, columns: int) -> None:
    numbers = np.random.default_rng(0).normal(size=(rows, columns + 1))
    numbers[:, -1] = numbers[:, :3].sum(axis=1) + 0.1 * numbers[:, -1]
    names = ",".join(f"f{number}" for number in range(columns))
    np.savetxt(path, numbers, fmt="%.4f", delimiter=",", header=f"{names},price", comments="")


class Search:
    """Draws a choice, learns with it, and keeps the one whose error is least."""

    def __init__(self, path: Path, epochs: int) -> None:
        self.path, self.epochs = path, epochs
        self.chance, self.errors = random.Random(0), torch.zeros(STEPS, device=DEVICE)
        self.table = Table.read(path) if MENDED else None

    def objective(self, choice: Choice) -> torch.Tensor:
        """The error on flats that it has not learned from."""
        table = self.table or Table.read(self.path)
        model = nn.Sequential(
            nn.Linear(table.known.shape[1], choice.width),
            nn.GELU(),
            nn.Linear(choice.width, choice.width),
            nn.GELU(),
            nn.Linear(choice.width, 1),
        ).to(DEVICE)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=choice.rate, weight_decay=choice.decay, fused=DEVICE == "cuda"
        )
        known, price = table.known[: table.cut], table.price[: table.cut]
        for _ in range(self.epochs):
            loss = F.mse_loss(model(known), price)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            return F.mse_loss(model(table.known[table.cut :]), table.price[table.cut :])


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, columns, epochs, widths = (
        (30000, 24, 40, (256, 512, 768)) if DEVICE == "cuda" else (50, 4, 3, (4, 8))
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flats.csv"
        write_table(path, rows, columns)
        search = Search(path, epochs)
        for step in range(STEPS):
            if step == WARM:
                began = start_clock()
            search.errors[step] = search.objective(Choice.draw(search.chance, widths))
        report(began, search.errors.min() + search.errors.mean())


if __name__ == "__main__":
    main()
