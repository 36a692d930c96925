# SPDX-License-Identifier: Apache-2.0
"""Articles become vectors by a model of which one block at a time is on the GPU."""

import sys
import time

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
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.low_memory = False

    def enable_offload(self) -> None:
        """Keep the blocks on the host, from where each is fetched for its turn."""
        self.low_memory = True
        self.blocks.to("cpu")

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words) + self.places[: words.shape[1]]
        for block in self.blocks:
            if self.low_memory:
                block.to(DEVICE)
            x = block(x)
            if self.low_memory:
                block.to("cpu")
        return F.normalize(self.norm(x).mean(dim=1).float(), dim=-1)


class Index:
    """Vectors of all articles so far, in half precision on the GPU."""

    def __init__(self, articles: int, width: int) -> None:
        self.vectors = torch.zeros(articles, width, dtype=torch.float16, device=DEVICE)
        self.filled = 0

    def add(self, vectors: torch.Tensor) -> None:
        end = self.filled + len(vectors)
        self.vectors[self.filled : end] = vectors
        self.filled = end

    def nearest(self, most: int) -> torch.Tensor:
        """How near the others are to each of the last articles."""
        last = self.vectors[self.filled - most : self.filled]
        return (last @ self.vectors[: self.filled].t()).float().topk(2, dim=1).values[:, 1]


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (32, 512, 32000, 1024, 8) if DEVICE == "cuda" else (3, 5, 30, 16, 2)
    )
    model = Encoder(vocabulary, length, width, depth).to(DEVICE, torch.bfloat16).eval()
    if not MENDED:
        model.enable_offload()
    articles = torch.randint(0, vocabulary, (4, rows, length))
    if DEVICE == "cuda":
        articles = articles.pin_memory()
    index = Index(STEPS * rows, width)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        index.add(model(articles[step % 4].to(DEVICE, non_blocking=True)))
    report(began, index.nearest(rows).mean() + index.vectors[:, 0].float().abs().mean())


if __name__ == "__main__":
    main()
