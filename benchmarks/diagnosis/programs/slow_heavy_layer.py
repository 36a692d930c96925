# SPDX-License-Identifier: Apache-2.0
"""The transformer's mixing layer as the slow kernel that this package plants."""

import sys
import time

import torch
from torch import nn

from profiling_lab.ops import heavy_layer

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
        self.weights = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = "fast" if MENDED else "slow"
        return heavy_layer(x, *self.weights, self.bias, implementation=kind)


def main() -> None:
    torch.manual_seed(0)
    width = 512 if DEVICE == "cuda" else 32
    model = nn.Sequential(nn.Linear(width, width), Mixer(width), nn.Linear(width, width)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(4096 if DEVICE == "cuda" else 16, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = model(x).square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
