# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer whose weight is divided by its largest singular value anew at each step in time."""

import sys
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

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


class Stable(nn.Module):
    """Recurrence that no input can make explode: its weight has norm 1."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(given, width)
        self.recurrent = spectral_norm(nn.Linear(width, width, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with parametrize.cached() if MENDED else nullcontext():
            return self.unrolled(self.into(x))

    def unrolled(self, driven: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(driven[:, 0])
        seen = []
        for now in driven.unbind(dim=1):
            h = torch.tanh(now + self.recurrent(h))
            seen.append(h)
        return torch.stack(seen, dim=1)


class Forecast(nn.Module):
    """Next value of several sensors."""

    def __init__(self, sensors: int, width: int) -> None:
        super().__init__()
        self.first, self.second = Stable(sensors, width), Stable(width, width)
        self.head = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, sensors))

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(readings)))


def main() -> None:
    torch.manual_seed(0)
    rows, moments, sensors, width = (256, 24, 64, 512) if DEVICE == "cuda" else (2, 4, 3, 8)
    model = Forecast(sensors, width).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    readings = torch.randn(rows, moments + 1, sensors, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = F.mse_loss(model(readings[:, :-1]), readings[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
