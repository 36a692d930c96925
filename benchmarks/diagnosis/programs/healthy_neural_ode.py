# SPDX-License-Identifier: Apache-2.0
"""A neural differential equation with a fixed number of Runge-Kutta steps over a large batch, in bf16."""

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


class Change(nn.Module):
    """Derivative of the state by time."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(size, width), nn.Linear(width, size)
        self.middle = nn.Linear(width, width)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.out(F.silu(self.middle(F.silu(self.into(state)))))


def advanced(change: Change, state: torch.Tensor, step: float) -> torch.Tensor:
    """The classical method of fourth order."""
    first = change(state)
    second = change(torch.add(state, first, alpha=step / 2))
    third = change(torch.add(state, second, alpha=step / 2))
    fourth = change(torch.add(state, third, alpha=step))
    return torch.add(state, first + 2 * (second + third) + fourth, alpha=step / 6)


class Trajectory(nn.Module):
    def __init__(self, given: int, size: int, width: int, moments: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(given, size), nn.Linear(size, given)
        self.change, self.moments = Change(size, width), moments

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        state = self.into(start)
        for _ in range(self.moments):
            state = advanced(self.change, state, 1 / self.moments)
        return self.out(state)


def main() -> None:
    torch.manual_seed(0)
    rows, given, size, width, moments = (16384, 64, 512, 2048, 4) if DEVICE == "cuda" else (4, 3, 8, 16, 2)
    model = Trajectory(given, size, width, moments).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    start = torch.randn(rows, given, device=DEVICE)
    end = start.roll(1, 1).sin()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            reached = model(start)
        loss = F.mse_loss(reached.float(), end)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
