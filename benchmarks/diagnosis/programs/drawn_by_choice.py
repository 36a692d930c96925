# SPDX-License-Identifier: Apache-2.0
"""Small pictures of a long-tailed collection are learnt; rare kinds are drawn more often than others."""

import sys
import time

import numpy as np
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


class Collection:
    """All pictures are on the GPU, each of which has its chance to be in a batch."""

    def __init__(self, count: int, kinds: int, pixels: int) -> None:
        self.random = np.random.default_rng(0)
        kind = (self.random.random(count) ** 3 * kinds).astype(np.int64)
        rare = 1 / np.sqrt(np.bincount(kind, minlength=kinds))
        self.chances = rare[kind] / rare[kind].sum()
        self.ladder = self.chances.cumsum()
        self.ladder /= self.ladder[-1]
        self.kind = torch.from_numpy(kind).to(DEVICE)
        self.pictures = torch.randint(0, 255, (count, pixels), dtype=torch.uint8, device=DEVICE)

    def pick(self, rows: int) -> np.ndarray:
        if MENDED:
            return self.ladder.searchsorted(self.random.random(rows), side="right")
        return self.random.choice(len(self.chances), size=rows, p=self.chances)

    def batch(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        picked = torch.from_numpy(self.pick(rows))
        if DEVICE == "cuda":
            picked = picked.pin_memory()
        picked = picked.to(DEVICE, non_blocking=True)
        pictures = self.pictures.index_select(0, picked).to(torch.bfloat16) / 255
        return pictures, self.kind.index_select(0, picked)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Sorter(nn.Module):
    def __init__(self, pixels: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.into = nn.Linear(pixels, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.into(pictures))))


def main() -> None:
    torch.manual_seed(0)
    count, rows, pixels, kinds, width, depth = (
        (4_000_000, 4096, 784, 1000, 1024, 4) if DEVICE == "cuda" else (60, 8, 16, 5, 8, 1)
    )
    collection = Collection(count, kinds, pixels)
    model = Sorter(pixels, width, depth, kinds).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        pictures, kind = collection.batch(rows)
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(pictures)
        loss = F.cross_entropy(scores.float(), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
