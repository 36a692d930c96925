# SPDX-License-Identifier: Apache-2.0
"""Prompts are read to predict one word each, and the scores of all words are computed at every position."""

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


class Reader(nn.Module):
    def __init__(self, words: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, prompts: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.blocks(self.words(prompts)))
        if MENDED:
            x = x[:, -1:]
        return self.head(x).float()


@torch.inference_mode()
def next_words(model: nn.Module, prompts: torch.Tensor) -> torch.Tensor:
    logits = model(prompts)
    return logits[:, -1].log_softmax(dim=-1).topk(16).values.mean()


def main() -> None:
    torch.manual_seed(0)
    words, width, heads, depth, rows, length = (
        (65536, 1024, 16, 4, 16, 1024) if DEVICE == "cuda" else (64, 16, 2, 2, 2, 8)
    )
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    model = Reader(words, width, heads, depth).to(DEVICE, dtype).eval()
    prompts = torch.randint(0, words, (rows, length), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        score = next_words(model, prompts)
    report(began, score)


if __name__ == "__main__":
    main()
