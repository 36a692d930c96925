# SPDX-License-Identifier: Apache-2.0
"""A small model of a language with very many words, for a keyboard."""

import sys
import time

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


class Keyboard(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.table(words) + self.places[: words.shape[1]])))


class Loss:
    def __init__(self, words: int) -> None:
        self.words = words

    def __call__(self, scores: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return F.cross_entropy(scores, truth)
        log_p = scores.log_softmax(dim=1)
        wanted = F.one_hot(truth, self.words)
        return -(wanted * log_p).sum(dim=1).mean()


def main() -> None:
    torch.manual_seed(0)
    rows, length, words, width, depth = (64, 128, 65536, 384, 4) if DEVICE == "cuda" else (2, 5, 30, 16, 1)
    model, loss_of = Keyboard(words, length, width, depth).to(DEVICE), Loss(words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    text = torch.randint(0, words, (STEPS, rows, length + 1))
    if DEVICE == "cuda":
        text = text.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        lines = text[step].to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(lines[:, :-1])
        loss = loss_of(scores.float().flatten(0, 1), lines[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
