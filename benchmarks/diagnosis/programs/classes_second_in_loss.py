# SPDX-License-Identifier: Apache-2.0
"""A model of language learns to say the next word, with a loss written as for pictures."""

import sys
import time

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


def loss_of(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Of scores by row, place and word, where the word that follows is the right one."""
    if MENDED:
        return F.cross_entropy(scores.flatten(0, 1), following.flatten())
    return F.cross_entropy(scores.transpose(1, 2), following)


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (16, 512, 32768, 1024, 8) if DEVICE == "cuda" else (3, 6, 40, 16, 1)
    )
    model = Language(vocabulary, length, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    texts = torch.randint(0, vocabulary, (4, rows, length + 1))
    if DEVICE == "cuda":
        texts = texts.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        words = texts[step % 4].to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of(model(words[:, :-1]), words[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
