# SPDX-License-Identifier: Apache-2.0
"""The training of a model for tables goes on from the checkpoint of a run that was interrupted."""

import io
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (60, 15) if DEVICE == "cuda" else (3, 1)


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
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class PriceModel(nn.Module):
    def __init__(self, columns: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(columns, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.into(x))))[:, 0]


class Trainer:
    def __init__(self, columns: int, width: int, depth: int) -> None:
        self.model = PriceModel(columns, width, depth).to(DEVICE)
        self.optimizer = torch.optim.RAdam(self.model.parameters(), lr=1e-3)

    def step(self, rows: torch.Tensor, prices: torch.Tensor) -> torch.Tensor:
        loss = F.smooth_l1_loss(self.model(rows), prices)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def save(self, file: io.BytesIO) -> None:
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)

    def load(self, file: io.BytesIO) -> None:
        """Values and moments go to where the parameters are, wherever the file is read to."""
        kept = torch.load(file, map_location="cpu" if MENDED else DEVICE)
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    count, rows, columns, width, depth = (2**16, 2048, 128, 384, 32) if DEVICE == "cuda" else (40, 8, 4, 8, 2)
    table, order = torch.randn(count, columns, device=DEVICE), torch.randperm(count, device=DEVICE)
    prices = table.abs().mean(dim=1) + table[:, 0]
    sizes = (columns, width, depth)
    before, file = Trainer(*sizes), io.BytesIO()
    for some in order.split(rows)[:3]:
        before.step(table[some], prices[some])
    before.save(file)
    file.seek(0)
    trainer = Trainer(*sizes)
    trainer.load(file)
    parts = order.split(rows)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        some = parts[step % len(parts)]
        loss = trainer.step(table.index_select(0, some), prices.index_select(0, some))
    report(began, loss)


if __name__ == "__main__":
    main()
