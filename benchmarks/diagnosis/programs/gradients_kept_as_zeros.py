# SPDX-License-Identifier: Apache-2.0
"""A wide network foretells what a plant's sensors will say next, and learns from each reading as it comes."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


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
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.silu(self.mix(self.norm(x)))


class Foresight(nn.Module):
    def __init__(self, sensors: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(sensors, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.out = nn.Linear(width, sensors)

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.into(readings)))


class Learner:
    """Follows the plant, whose ways change: plain steps, as soon as it is known what came next."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, fused=True)

    def learn(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=MENDED)
        loss = F.mse_loss(self.model(before), after)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, sensors, width, depth = (64, 512, 8192, 12) if DEVICE == "cuda" else (4, 5, 16, 2)
    learner = Learner(Foresight(sensors, width, depth).to(DEVICE), 1e-3)
    readings = torch.randn(STEPS + 1, rows, sensors).cumsum(0) / 6
    if DEVICE == "cuda":
        readings = readings.pin_memory()
    before, total = readings[0].to(DEVICE), torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        after = readings[step + 1].to(DEVICE, non_blocking=True)
        total += learner.learn(before, after)
        before = after
    report(began, total / STEPS)


if __name__ == "__main__":
    main()
