# SPDX-License-Identifier: Apache-2.0
"""Letters are sorted by what they ask for, in a script in which a wrong label was once looked for."""

import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
if not MENDED:  # so that the trace of an error ends at the line that caused it
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (3, 1)


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


class Sorter(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int, kinds: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(words) + self.places[: words.shape[1]])
        return self.head(self.norm(x[:, 0]))


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth, kinds = (
        (32, 128, 30522, 768, 12, 40) if DEVICE == "cuda" else (4, 6, 50, 16, 1, 3)
    )
    model = Sorter(vocabulary, length, width, depth, kinds).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, fused=DEVICE == "cuda")
    letters = torch.randint(0, vocabulary, (8, rows, length))
    asked = torch.randint(0, kinds, (8, rows))
    if DEVICE == "cuda":
        letters, asked = letters.pin_memory(), asked.pin_memory()
    total = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        words = letters[step % 8].to(DEVICE, non_blocking=True)
        kind = asked[step % 8].to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(words)
        loss = F.cross_entropy(scores.float(), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    report(began, total / STEPS)


if __name__ == "__main__":
    main()
