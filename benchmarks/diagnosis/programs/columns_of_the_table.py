# SPDX-License-Identifier: Apache-2.0
"""Candidates are ranked by products with item vectors that are the columns of a table."""

import sys
import time

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


class Tower(nn.Module):
    """What a user did, as one vector."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(given, 4 * given),
            nn.ReLU(),
            nn.Linear(4 * given, given),
            nn.ReLU(),
            nn.Linear(given, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.layers(x).float(), dim=-1)


class Ranker(nn.Module):
    def __init__(self, items: int, given: int, width: int) -> None:
        super().__init__()
        self.tower = Tower(given, width)
        vectors = torch.randn(items, width, device=DEVICE)
        self.register_buffer("items", vectors if MENDED else vectors.t().contiguous())

    def scores(self, user: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """One score for each candidate of each user."""
        if MENDED:
            return (self.items[candidates] @ user[..., None])[..., 0]
        return torch.einsum("bw,wbc->bc", user, self.items[:, candidates])

    def forward(self, seen: torch.Tensor, candidates: torch.Tensor, best: int) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            user = self.tower(seen)
        place = self.scores(user, candidates).topk(best, dim=1).indices
        return candidates.gather(1, place)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    items, users, count, given, width, batches = (
        (2_000_000, 1024, 1000, 512, 128, 8) if DEVICE == "cuda" else (100, 3, 10, 8, 4, 2)
    )
    model = Ranker(items, given, width).to(DEVICE)
    seen = torch.randn(batches, users, given, device=DEVICE)
    candidates = torch.randint(0, items, (batches, users, count), device=DEVICE)
    clicks = torch.zeros(items, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        for given_seen, retrieved in zip(seen, candidates, strict=True):
            shown = model(given_seen, retrieved, 10)
            clicks.index_fill_(0, shown.flatten(), 1.0)
    report(began, clicks.mean())


if __name__ == "__main__":
    main()
