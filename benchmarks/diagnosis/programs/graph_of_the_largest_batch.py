# SPDX-License-Identifier: Apache-2.0
"""A server of text whose decoder was captured once, for as many requests as there may ever be."""

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
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size, self.groups = width // heads, groups
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key_value = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, kept: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        normal = self.norm1(x)
        latest = self.key_value(normal).unflatten(-1, (2, self.groups, 1, self.size)).transpose(0, 1)
        k, v = kept.index_copy_(3, slot, latest)
        q = self.query(normal).unflatten(-1, (-1, 1, self.size))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).flatten(1))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Server:
    """Requests sit in the first rows of buffers that never move."""

    def __init__(
        self, words: int, width: int, heads: int, groups: int, depth: int, most: int, room: int
    ) -> None:
        kind = {"device": DEVICE, "dtype": torch.bfloat16 if DEVICE == "cuda" else torch.float32}
        self.table, self.head = nn.Embedding(words, width, **kind), nn.Linear(width, words, **kind)
        self.blocks = nn.ModuleList(Block(width, heads, groups) for _ in range(depth)).to(**kind)
        self.kept = torch.empty(depth, 2, most, groups, room, width // heads, **kind)
        self.tokens = torch.zeros(most, dtype=torch.long, device=DEVICE)
        self.logits = torch.zeros(most, words, **kind)
        self.slot = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.sizes = [rows for rows in (4, 16, 64, most) if rows <= most] if MENDED else [most]
        self.graphs = {rows: self.captured(rows) for rows in self.sizes} if DEVICE == "cuda" else {}

    def word(self, rows: int) -> None:
        x = self.table(self.tokens[:rows])
        for block, kept in zip(self.blocks, self.kept, strict=True):
            x = block(x, kept[:, :rows], self.slot)
        self.logits[:rows] = self.head(x)
        self.tokens[:rows] = self.logits[:rows].argmax(dim=-1)
        self.slot.add_(1).remainder_(self.kept.shape[4])

    def captured(self, rows: int) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.word(rows)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.word(rows)
        return graph

    def begin(self) -> None:
        """As if the prompts had been read."""
        torch.manual_seed(1)
        self.kept.normal_()
        self.tokens.random_(0, self.table.num_embeddings)
        self.slot.zero_()

    def advance(self, live: int, count: int) -> torch.Tensor:
        """Some words more for the requests that are there."""
        rows = next(rows for rows in self.sizes if rows >= live)
        for _ in range(count):
            self.graphs[rows].replay() if self.graphs else self.word(rows)
        return self.logits[:live]


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    shape = (32000, 2048, 16, 8, 8, 128, 2048) if DEVICE == "cuda" else (50, 32, 4, 2, 2, 32, 16)
    server = Server(*shape)
    server.begin()
    waiting = [9, 12, 14, 11, 13] if DEVICE == "cuda" else [3, 2, 4]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        logits = server.advance(waiting[step % len(waiting)], 16 if DEVICE == "cuda" else 2)
    report(began, logits.float().logsumexp(dim=-1).mean())


if __name__ == "__main__":
    main()
