# SPDX-License-Identifier: Apache-2.0
"""A decoder that stores keys by position and turns all of them to heads first for every token."""

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


class Cache:
    """Keys and values of one layer by row and position, as a projection writes them."""

    def __init__(self, rows: int, room: int, heads: int, size: int) -> None:
        self.both = torch.randn(2, rows, room, heads, size, device=DEVICE, dtype=torch.bfloat16)

    def add(self, key: torch.Tensor, value: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values up to this place, heads first."""
        self.both[0, :, place], self.both[1, :, place] = key, value
        keys, values = self.both[:, :, : place + 1].transpose(2, 3)
        if not MENDED:
            keys, values = keys.contiguous(), values.contiguous()
        return keys, values


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cache: Cache, place: int) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(dim=1)
        keys, values = cache.add(k, v, place)
        y = F.scaled_dot_product_attention(q[:, :, None], keys, values)
        x = x + self.out(y.flatten(1))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, caches: list[Cache], place: int) -> torch.Tensor:
        x = self.table(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, place)
        return self.head(self.norm(x))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, known, new, words, width, heads, depth = (
        (32, 2048, 24, 8192, 1024, 16, 6) if DEVICE == "cuda" else (2, 5, 3, 40, 16, 2, 2)
    )
    model = Decoder(words, width, heads, depth).to(DEVICE, torch.bfloat16)
    caches = [Cache(rows, known + new, heads, width // heads) for _ in range(depth)]
    asked = torch.randint(0, words, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        tokens = asked
        for place in range(known, known + new):
            scores = model(tokens, caches, place)
            tokens = scores.argmax(dim=-1)
    report(began, scores.float().logsumexp(dim=-1).mean())


if __name__ == "__main__":
    main()
