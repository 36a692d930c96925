# SPDX-License-Identifier: Apache-2.0
"""Forecasts of many series from patches of their history, which is a ring on the GPU."""

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


class Ring:
    """The last values of every series. The newest replace the oldest, and nothing moves."""

    def __init__(self, series: int, length: int) -> None:
        self.seen = torch.zeros(series, length, device=DEVICE)
        self.length, self.at = length, 0

    def append(self, newest: torch.Tensor) -> None:
        end = self.at + newest.shape[1]
        self.seen[:, self.at : end] = newest
        self.at = end % self.length

    def patches(self, size: int) -> torch.Tensor:
        places = torch.arange(self.at, self.at + self.length, device=DEVICE) % self.length
        return self.seen.index_select(1, places).unflatten(1, (-1, size))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Forecaster(nn.Module):
    def __init__(self, patch: int, number: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.into, self.place = nn.Linear(patch, width), nn.Parameter(torch.zeros(number, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.out = nn.Linear(width, patch)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.into(patches) + self.place)[:, -1])


def main() -> None:
    torch.manual_seed(0)
    series, length, patch, width, heads, depth = (
        (512, 1024, 16, 512, 8, 4) if DEVICE == "cuda" else (4, 16, 4, 16, 2, 1)
    )
    ring = Ring(series, length)
    model = Forecaster(patch, length // patch, width, heads, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    measured = torch.randn(STEPS, series, patch, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.mse_loss(model(ring.patches(patch)).float(), measured[step])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ring.append(measured[step])
    report(began, loss)


if __name__ == "__main__":
    main()
