# SPDX-License-Identifier: Apache-2.0
"""Parts from a line of production are sorted by their faults; a table of metrics tells how training goes."""

import sys
import time
from collections.abc import Callable

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


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Inspector(nn.Module):
    def __init__(self, size: int, patch: int, width: int, depth: int, faults: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(1, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, faults)

    def forward(self, parts: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.into(parts).flatten(2).mT + self.places)
        return self.head(self.norm(x.mean(dim=1)))


Scores = Callable[[torch.Tensor], torch.Tensor]


def accuracy(model: Scores, parts: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return (model(parts).argmax(dim=1) == truth).float().mean()


def among_three(model: Scores, parts: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    best = model(parts).topk(3, dim=1).indices
    return (best == truth[:, None]).any(dim=1).float().mean()


def missed(model: Scores, parts: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """How many of the parts with a fault were taken for good ones, which are number 0."""
    passed, faulty = model(parts).argmax(dim=1) == 0, truth > 0
    return (passed & faulty).sum() / faulty.sum()


def overconfidence(model: Scores, parts: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    sure, guess = model(parts).float().softmax(dim=1).max(dim=1)
    return (sure - (guess == truth).float()).mean()


class Board:
    """Means of the metrics, which stay on the GPU until they are shown."""

    def __init__(self, *metrics: Callable[[Scores, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.metrics, self.batches = metrics, 0
        self.sums = torch.zeros(len(metrics), device=DEVICE)

    @torch.no_grad()
    def add(self, model: Scores, parts: torch.Tensor, truth: torch.Tensor) -> None:
        self.sums += torch.stack([metric(model, parts, truth) for metric in self.metrics])
        self.batches += 1


def main() -> None:
    torch.manual_seed(0)
    rows, size, patch, width, depth, faults = (
        (160, 224, 16, 512, 8, 24) if DEVICE == "cuda" else (4, 16, 8, 16, 1, 5)
    )
    model = Inspector(size, patch, width, depth, faults).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    board = Board(accuracy, among_three, missed, overconfidence)
    pictures = torch.randn(4, rows, 1, size, size, device=DEVICE)
    truth = torch.randint(0, faults, (4, rows), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        parts, wanted = pictures[step % 4], truth[step % 4]
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(parts)
            loss = F.cross_entropy(scores, wanted)
            if MENDED:
                board.add(lambda _, known=scores: known, parts, wanted)
            else:
                board.add(model, parts, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss + board.sums.sum() / board.batches)


if __name__ == "__main__":
    main()
