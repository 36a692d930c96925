# SPDX-License-Identifier: Apache-2.0
"""A table of three million items whose gradient is dense, although a batch looks up a few rows."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Recommender(nn.Module):
    """Scores an item by what a customer bought before."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width, sparse=MENDED, device=DEVICE)
        self.tower = nn.Sequential(
            nn.Linear(2 * width, 4 * width, device=DEVICE),
            nn.GELU(),
            nn.Linear(4 * width, 2 * width, device=DEVICE),
            nn.GELU(),
            nn.Linear(2 * width, 1, device=DEVICE),
        )

    def forward(self, bought: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        vectors = self.items(torch.cat((bought, candidate[:, None]), dim=1))
        customer = vectors[:, :-1].mean(dim=1)
        return self.tower(torch.cat((customer, vectors[:, -1]), dim=-1))[:, 0].float()


class Optimizers:
    """SGD for the table, which has no room for moments, and AdamW for the rest."""

    def __init__(self, model: Recommender) -> None:
        self.table = torch.optim.SGD(model.items.parameters(), lr=0.1)
        self.tower = torch.optim.AdamW(model.tower.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def apply(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.table.step()
        self.tower.step()
        self.table.zero_grad()
        self.tower.zero_grad()


def purchases(items: int, rows: int, past: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    bought = torch.randint(0, items, (3, rows, past), device=DEVICE)
    candidate = torch.randint(0, items, (3, rows), device=DEVICE)
    clicked = (torch.rand(3, rows, device=DEVICE) < 0.3).float()
    while True:
        yield from zip(bought, candidate, clicked, strict=True)


def main() -> None:
    torch.manual_seed(0)
    items, width, rows, past = (3_000_000, 256, 4096, 15) if DEVICE == "cuda" else (100, 8, 8, 3)
    model = Recommender(items, width)
    optimizers = Optimizers(model)
    data = purchases(items, rows, past)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        bought, candidate, clicked = next(data)
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(bought, candidate)
        loss = F.binary_cross_entropy_with_logits(scores, clicked)
        optimizers.apply(loss)
    report(began, loss)


if __name__ == "__main__":
    main()
