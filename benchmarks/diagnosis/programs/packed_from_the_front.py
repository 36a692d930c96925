# SPDX-License-Identifier: Apache-2.0
"""A small model of language is trained on texts that are joined to rows of equal length, without gaps."""

import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def shards(words: int, vocabulary: int) -> Iterator[list[list[int]]]:
    """The texts of one file after the other, as numbers of words."""
    random = np.random.default_rng(0)
    while True:
        lengths = random.integers(words // 2000 + 2, words // 1000 + 4, 1000)
        numbers = random.integers(1, vocabulary, lengths.sum()).tolist()
        ends = lengths.cumsum().tolist()
        yield [numbers[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


class Packed:
    """Rows of equal length, cut from all texts in a row with a 0 after each of them."""

    def __init__(self, files: Iterator[list[list[int]]], length: int) -> None:
        self.files, self.length = files, length
        self.words: list[int] = []
        self.used = 0

    def fill(self) -> None:
        self.words, self.used = self.words[self.used :], 0
        for text in next(self.files):
            self.words.extend(text)
            self.words.append(0)

    def row(self) -> list[int]:
        while len(self.words) - self.used < self.length:
            self.fill()
        if MENDED:
            self.used += self.length
            return self.words[self.used - self.length : self.used]
        row, self.words = self.words[: self.length], self.words[self.length :]
        return row

    def batch(self, rows: int) -> torch.Tensor:
        words = torch.from_numpy(np.array([self.row() for _ in range(rows)]))
        return words.pin_memory().to(DEVICE, non_blocking=True) if DEVICE == "cuda" else words


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(words) + self.places[: words.shape[1]])
        return self.head(self.norm(x))


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth, words = (
        (16, 512, 8192, 768, 8, 1_200_000) if DEVICE == "cuda" else (3, 6, 40, 16, 1, 300)
    )
    model = Language(vocabulary, length, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    packed = Packed(shards(words, vocabulary), length + 1)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        text = packed.batch(rows)
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(text[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
