# SPDX-License-Identifier: Apache-2.0
"""A shop shows each visitor what to look at next, and nothing that was bought before."""

import sys
import time

import numpy as np
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
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class NextItem(nn.Module):
    """Scores all items by the last ones that a user has looked at."""

    def __init__(self, items: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(items, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(seen) + self.places)
        return self.norm(x[:, -1]) @ self.table.weight.t()


class Shop:
    """What each user has looked at last, and everything that each has bought."""

    def __init__(self, users: int, items: int, length: int, most: int) -> None:
        random = np.random.default_rng(0)
        self.seen = torch.from_numpy(random.integers(0, items, (users, length)))
        counts = random.integers(1, most, users)
        self.bought = [random.integers(0, items, count) for count in counts]

    def look(self, users: np.ndarray) -> torch.Tensor:
        seen = self.seen[torch.from_numpy(users)]
        if DEVICE == "cuda":
            seen = seen.pin_memory()
        return seen.to(DEVICE, non_blocking=True)

    def rule_out(self, scores: torch.Tensor, users: np.ndarray) -> None:
        """What a user has bought gets the worst score."""
        if MENDED:
            bought = [self.bought[user] for user in users]
            rows = np.repeat(np.arange(len(users)), [len(items) for items in bought])
            both = torch.from_numpy(np.stack((rows, np.concatenate(bought)))).to(DEVICE)
            scores[both[0], both[1]] = -torch.inf
            return
        for row, user in enumerate(users):
            scores[row, self.bought[user]] = -torch.inf


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    users, rows, items, length, most, width, depth, shown = (
        (20_000, 1024, 100_000, 64, 120, 256, 3, 20) if DEVICE == "cuda" else (30, 4, 50, 6, 8, 16, 1, 3)
    )
    model = NextItem(items, length, width, depth).to(DEVICE, torch.bfloat16).eval()
    shop = Shop(users, items, length, most)
    visits = np.random.default_rng(1).integers(0, users, (STEPS, rows))
    pages = torch.zeros(STEPS, rows, shown, dtype=torch.int64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        scores = model(shop.look(visits[step])).float()
        shop.rule_out(scores, visits[step])
        best = scores.topk(shown, dim=1)
        pages[step] = best.indices
    report(began, best.values.mean())
    assert int(pages.max()) < items


if __name__ == "__main__":
    main()
