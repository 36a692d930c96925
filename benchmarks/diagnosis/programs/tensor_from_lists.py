# SPDX-License-Identifier: Apache-2.0
"""Each batch becomes a tensor from the Python lists in which a table was read."""

import sys
import time
from collections.abc import Iterator

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


BATCH, COLUMNS, WIDTH = (1024, 128, 1024) if DEVICE == "cuda" else (16, 32, 32)
PIN = DEVICE == "cuda"


def read_table(rows: int) -> list[list[float]]:
    """Stands for csv.reader and float()."""
    return torch.rand(rows, COLUMNS).tolist()


def batches(table: list[list[float]]) -> Iterator[torch.Tensor]:
    whole = torch.tensor(table, pin_memory=PIN) if MENDED else None
    for step in range(STEPS):
        start = step * BATCH % len(table)
        if whole is not None:
            features = whole[start : start + BATCH]
        else:
            rows = table[start : start + BATCH]
            features = torch.tensor(rows, pin_memory=PIN)
        yield features.to(DEVICE, non_blocking=True)


class Tabular(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first = nn.Linear(COLUMNS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(blocks)
        )
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        for block in self.blocks:
            y = y + block(y)
        return self.last(y).squeeze(-1)


def main() -> None:
    torch.manual_seed(0)
    model = Tabular(6).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    table = read_table(4 * BATCH)
    for step, x in enumerate(batches(table)):
        if step == WARM:
            began = start_clock()
        target = x.mean(1)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.mse_loss(model(x).float(), target)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
