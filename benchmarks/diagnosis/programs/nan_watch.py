# SPDX-License-Identifier: Apache-2.0
"""A sampler whose network looks for NaN on the host after every layer."""

import sys
import time
from collections.abc import Iterator

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


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + F.gelu(self.linear(self.norm(h)))


class Denoiser(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            h = layer(h)
            if not MENDED:
                watch(h, number)
        return self.out(h)


def watch(h: torch.Tensor, number: int) -> None:
    if torch.isnan(h).any():
        raise FloatingPointError(f"layer {number} gave NaN")


def samples(model: nn.Module, x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Takes a little of the predicted noise away, again and again."""
    while True:
        x = x - 0.05 * model(x)
        yield x


def main() -> None:
    torch.manual_seed(0)
    rows, width, layers = (8192, 1024, 64) if DEVICE == "cuda" else (16, 32, 4)
    model = Denoiser(width, layers).to(DEVICE, torch.bfloat16)
    noise = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    with torch.inference_mode():
        sampler = samples(model, noise)
        for step in range(STEPS):
            if step == WARM:
                began = start_clock()
            x = next(sampler)
        report(began, x.float().square().mean())
        watch(x, layers)  # a NaN anywhere is still one here


if __name__ == "__main__":
    main()
