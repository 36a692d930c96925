# SPDX-License-Identifier: Apache-2.0
"""Decoding with a window of keys and values that is overwritten in place, replayed as a CUDA graph."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 5) if DEVICE == "cuda" else (3, 1)


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

    def forward(self, x: torch.Tensor, window: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        normal = self.norm1(x)
        latest = self.key_value(normal).unflatten(-1, (2, self.groups, 1, self.size)).transpose(0, 1)
        k, v = window.index_copy_(3, slot, latest)
        q = self.query(normal).unflatten(-1, (-1, 1, self.size))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).flatten(1))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Decoder:
    """Greedy decoding; the text so far is longer than the window, whose oldest token makes room."""

    def __init__(self, words: int, width: int, heads: int, groups: int, layers: int) -> None:
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def start(self, rows: int, length: int, dtype: torch.dtype) -> None:
        for part in (self.table, self.blocks, self.head):
            part.to(dtype)
        first = self.blocks[0]
        room = (2, rows, first.groups, length, first.size)
        self.windows = [torch.randn(room, dtype=dtype) for _ in self.blocks]
        self.slot = torch.zeros(1, dtype=torch.long)
        self.token = torch.randint(0, self.head.out_features, (rows,))

    def step(self) -> torch.Tensor:
        x = self.table(self.token)
        for block, window in zip(self.blocks, self.windows, strict=True):
            x = block(x, window, self.slot)
        logits = self.head(x)
        self.token.copy_(logits.argmax(dim=-1))
        self.slot.add_(1).remainder_(self.windows[0].shape[3])
        return logits


def graphed(decoder: Decoder) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            decoder.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = decoder.step()
    return graph, logits


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        if DEVICE == "cuda":
            decoder = Decoder(32000, 2048, 16, 8, 8)
            decoder.start(64, 2048, torch.bfloat16)
            graph, logits = graphed(decoder)
        else:
            decoder = Decoder(50, 32, 4, 2, 2)
            decoder.start(2, 16, torch.float32)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        if DEVICE == "cuda":
            graph.replay()
        else:
            logits = decoder.step()
    report(began, F.cross_entropy(logits.float(), decoder.token))


if __name__ == "__main__":
    main()
