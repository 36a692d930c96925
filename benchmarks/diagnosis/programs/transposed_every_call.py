# SPDX-License-Identifier: Apache-2.0
"""A decoder whose weights are stored the other way round and copied for each product."""

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


class Stored(nn.Module):
    """A linear layer from a checkpoint that keeps its weight as (inputs, outputs)."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(given, wanted) / given**0.5)
        self.bias = nn.Parameter(torch.zeros(wanted))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return torch.addmm(self.bias, x, self.weight)
        return F.linear(x, self.weight.t().contiguous(), self.bias)


class Layer(nn.Module):
    """Attention of one new word to those in the cache, then a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.out = Stored(width, width), Stored(width, width)
        self.up, self.down = Stored(width, 4 * width), Stored(4 * width, width)

    def forward(self, x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q = self.q(self.norm1(x)).view(len(x), self.heads, 1, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).flatten(1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, seen, width, heads, depth = (32, 256, 4096, 32, 6) if DEVICE == "cuda" else (2, 4, 16, 2, 2)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    layers = nn.ModuleList(Layer(width, heads) for _ in range(depth)).to(DEVICE, dtype)
    k, v = torch.randn(2, rows, heads, seen, width // heads, device=DEVICE, dtype=dtype)
    start = torch.randn(rows, width, device=DEVICE, dtype=dtype)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        x = start
        for layer in layers:
            x = layer(x, k, v)
    report(began, x.float().square().mean())


if __name__ == "__main__":
    main()
