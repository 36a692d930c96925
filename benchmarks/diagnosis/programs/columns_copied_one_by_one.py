# SPDX-License-Identifier: Apache-2.0
"""A table whose hundreds of columns are copied to the GPU one after the other."""

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


class Table:
    """Columns by name, as they were read from a file."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = {f"feature_{number}": torch.randn(rows) for number in range(columns)}
        self.target = torch.randint(0, 2, (rows,), device=DEVICE).float()

    def batches(self, rows: int) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        starts = range(0, len(self.target), rows)
        while True:
            for start in starts:
                part = slice(start, start + rows)
                yield {name: column[part] for name, column in self.columns.items()}, self.target[part]


class StackedTable(Table):
    """The same columns as one tensor in pinned memory."""

    def batches(self, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        parts = torch.stack(list(self.columns.values())).split(rows, dim=1)
        pinned = [part.contiguous().pin_memory() if DEVICE == "cuda" else part for part in parts]
        while True:
            yield from zip(pinned, self.target.split(rows), strict=True)


def features_of(batch: torch.Tensor | dict[str, torch.Tensor]) -> torch.Tensor:
    """One row per example, on the GPU."""
    if isinstance(batch, torch.Tensor):
        return batch.to(DEVICE, non_blocking=True).T
    on_device = [column.to(DEVICE) for column in batch.values()]
    return torch.stack(on_device, dim=1)


class Ranker(nn.Module):
    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(columns), nn.Linear(columns, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.last = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(self.norm(x)))
        for layer in self.hidden:
            y = y + F.relu(layer(y))
        return self.last(y)[:, 0]


def main() -> None:
    torch.manual_seed(0)
    columns, rows, width = (320, 8192, 1536) if DEVICE == "cuda" else (12, 8, 16)
    table = (StackedTable if MENDED else Table)(columns, 3 * rows)
    model = Ranker(columns, width).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step, (batch, target) in zip(range(STEPS), table.batches(rows), strict=False):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            clicks = model(features_of(batch))
        loss = F.binary_cross_entropy_with_logits(clicks.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
