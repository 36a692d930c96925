# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache of keys and values that is joined anew for every token."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (25, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


PROMPT = 4000 if DEVICE == "cuda" else 12


class Cache:
    """The keys and values of one layer, here after a prompt."""

    def __init__(self, rows: int, heads: int, size: int, dtype: torch.dtype) -> None:
        self.length = PROMPT
        shape = (rows, heads, PROMPT, size)
        self.k, self.v = (torch.randn(shape, device=DEVICE, dtype=dtype) for _ in range(2))
        if MENDED:
            self.k, self.v = (F.pad(past, (0, 0, 0, STEPS)) for past in (self.k, self.v))

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.length += 1
        if MENDED:
            self.k[:, :, self.length - 1 : self.length] = k
            self.v[:, :, self.length - 1 : self.length] = v
            return self.k[:, :, : self.length], self.v[:, :, : self.length]
        self.k = torch.cat((self.k, k), dim=2)
        self.v = torch.cat((self.v, v), dim=2)
        return self.k, self.v


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, *cache.append(k, v))
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, token: torch.Tensor, caches: list[Cache]) -> torch.Tensor:
        x = self.table(token)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return self.head(x)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a new plan for every length
    words, width, heads, rows, layers = (32000, 2048, 16, 16, 6) if DEVICE == "cuda" else (50, 32, 2, 2, 2)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    with torch.device(DEVICE):
        model = Decoder(words, width, heads, layers).to(dtype)
        token = torch.randint(0, words, (rows, 1))
    caches = [Cache(rows, heads, width // heads, dtype) for _ in range(layers)]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        logits = model(token, caches)
        token = logits.argmax(dim=-1)
    report(began, F.cross_entropy(logits[:, 0].float(), token[:, 0]))


if __name__ == "__main__":
    main()
