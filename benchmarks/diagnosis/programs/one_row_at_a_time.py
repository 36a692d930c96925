# SPDX-License-Identifier: Apache-2.0
"""A small language model whose gradients are accumulated over micro-batches of one row."""

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
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, width // 16 if width < 64 else 8) for _ in range(layers)))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


def micro_batches(tokens: torch.Tensor) -> Iterator[torch.Tensor]:
    """Parts that are small enough for any GPU."""
    yield from tokens.split(len(tokens) if MENDED else 1)


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def loss_of(self, part: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = self.model(part[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten())

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device=DEVICE)
        for part in micro_batches(tokens):
            loss = self.loss_of(part) * (len(part) / len(tokens))
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


def main() -> None:
    torch.manual_seed(0)
    rows, length, words = (16, 257, 4096) if DEVICE == "cuda" else (4, 17, 64)
    trainer = Trainer(LanguageModel(words, *((512, 4) if DEVICE == "cuda" else (32, 1))).to(DEVICE))
    tokens = torch.randint(0, words, (rows, length), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(tokens)
    report(began, loss)


if __name__ == "__main__":
    main()
