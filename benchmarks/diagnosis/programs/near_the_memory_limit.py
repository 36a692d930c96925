# SPDX-License-Identifier: Apache-2.0
"""A streaming decoder on a share of the GPU whose cache of keys and values is concatenated anew."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
STEPS, WARM = (20, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Cache:
    """Keys and values of all frames so far."""

    def __init__(self, streams: int, heads: int, size: int, longest: int) -> None:
        shape = (streams, heads, longest if MENDED else 0, size)
        self.k = torch.empty(shape, dtype=DTYPE, device=DEVICE)
        self.v = torch.empty(shape, dtype=DTYPE, device=DEVICE)
        self.length = 0

    def append(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        begin, self.length = self.length, self.length + k.shape[2]
        if MENDED:
            self.k[:, :, begin : self.length] = k
            self.v[:, :, begin : self.length] = v
        else:
            self.k = torch.cat([self.k, k], dim=2)
            self.v = torch.cat([self.v, v], dim=2)
        return self.k[:, :, : self.length], self.v[:, :, : self.length]


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = cache.append(k, v)
        heard = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(heard.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


def frames(lengths: list[int], streams: int, width: int) -> Iterator[torch.Tensor]:
    for length in lengths:
        yield torch.randn(streams, length, width, device=DEVICE, dtype=DTYPE)


def main() -> None:
    torch.manual_seed(0)
    streams, width, heads, layers = (64, 1024, 16, 8) if DEVICE == "cuda" else (2, 32, 2, 2)
    if DEVICE == "cuda":  # other services have the rest of this GPU
        share = 2.5 * 2**30 / torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(share)
    lengths = [32 + 8 * (number % 3) for number in range(STEPS)]
    model = nn.ModuleList(Layer(width, heads) for _ in range(layers)).to(DEVICE, DTYPE)
    caches = [Cache(streams, heads, width // heads, sum(lengths)) for _ in range(layers)]
    arriving = frames(lengths, streams, width)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.inference_mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            x = next(arriving)
            for layer, cache in zip(model, caches, strict=True):
                x = layer(x, cache)
            loss = x.float().square().mean()
    report(began, loss)


if __name__ == "__main__":
    main()
