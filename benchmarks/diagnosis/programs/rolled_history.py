# SPDX-License-Identifier: Apache-2.0
"""Forecasts of many series, whose history moves by one place in every step."""

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


class History:
    """The last values of every series."""

    def __init__(self, series: int, length: int, features: int) -> None:
        self.seen = torch.zeros(series, length, features, device=DEVICE)
        self.length, self.at = length, length - 1

    def append(self, newest: torch.Tensor) -> None:
        if MENDED:
            self.at = (self.at + 1) % self.length
        else:
            self.seen = torch.roll(self.seen, -1, dims=1)
        self.seen[:, self.at] = newest

    def last(self, number: int) -> torch.Tensor:
        places = torch.arange(self.at - number + 1, self.at + 1, device=DEVICE) % self.length
        return self.seen.index_select(1, places).flatten(1)


class Forecaster(nn.Module):
    """Predicts the next values of a series from the last ones."""

    def __init__(self, inputs: int, width: int, features: int) -> None:
        super().__init__()
        self.into = nn.Linear(inputs, width)
        self.deep = nn.Linear(width, width)
        self.out = nn.Linear(width, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.into(x))
        return self.out(x + F.gelu(self.deep(x)))


def main() -> None:
    torch.manual_seed(0)
    series, length, features, used, width = (
        (4096, 4096, 32, 32, 1024) if DEVICE == "cuda" else (4, 8, 2, 4, 8)
    )
    history = History(series, length, features)
    model = Forecaster(used * features, width, features).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    measured = torch.randn(STEPS, series, features, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            forecast = model(history.last(used))
        loss = F.mse_loss(forecast.float(), measured[step])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(measured[step])
    report(began, loss)


if __name__ == "__main__":
    main()
