# SPDX-License-Identifier: Apache-2.0
"""Image and text towers overlap on two streams and meet once per batch."""

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


class Mixer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, width: int, layers: int, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Mixer(width) for _ in range(layers)))
        self.head = nn.Linear(width, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.head(self.layers(x).mean(1)).float(), dim=-1)


class TwoTowers:
    def __init__(self, width: int, layers: int) -> None:
        dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
        self.images = Tower(width, layers, 256).to(DEVICE, dtype)
        self.texts = Tower(width, layers, 256).to(DEVICE, dtype)
        self.side = torch.cuda.Stream() if DEVICE == "cuda" else None

    @torch.inference_mode()
    def match(self, patches: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """The contrastive loss of pairs."""
        if self.side:
            self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            texts = self.texts(words)
        images = self.images(patches)
        if self.side:
            torch.cuda.current_stream().wait_stream(self.side)
            texts.record_stream(torch.cuda.current_stream())
        return F.cross_entropy(20.0 * images @ texts.T, torch.arange(len(images), device=DEVICE))


def main() -> None:
    torch.manual_seed(0)
    width, layers, pairs, length = (1024, 8, 128, 64) if DEVICE == "cuda" else (32, 2, 4, 8)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    towers = TwoTowers(width, layers)
    patches = torch.randn(pairs, length, width, device=DEVICE, dtype=dtype)
    words = torch.randn(pairs, length, width, device=DEVICE, dtype=dtype)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = towers.match(patches, words)
    report(began, loss)


if __name__ == "__main__":
    main()
