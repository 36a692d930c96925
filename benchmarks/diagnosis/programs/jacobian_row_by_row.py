# SPDX-License-Identifier: Apache-2.0
"""A continuous flow whose divergence takes one backward pass for each dimension, one after the other."""

import sys
import time

import torch
from torch import nn

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


class Field(nn.Module):
    """The velocity of each point."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(size, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, size)
        )

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points)


def divergence(velocity: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The trace of the Jacobian, for each point, so that training can differentiate it."""
    size = points.shape[-1]
    if MENDED:
        directions = torch.eye(size, device=points.device)[:, None].expand(size, *points.shape)
        (rows,) = torch.autograd.grad(velocity, points, directions, create_graph=True, is_grads_batched=True)
        return rows.diagonal(dim1=0, dim2=2).sum(dim=-1)
    total = torch.zeros_like(points[:, 0])
    for column in range(size):
        (row,) = torch.autograd.grad(velocity[:, column].sum(), points, create_graph=True)
        total = total + row[:, column]
    return total


class Flow(nn.Module):
    """Moves points to a normal distribution and counts how their volume changes."""

    def __init__(self, field: Field, moves: int) -> None:
        super().__init__()
        self.field, self.moves = field, moves

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        log_volume = torch.zeros_like(points[:, 0])
        for _ in range(self.moves):
            points = points.detach().requires_grad_() if points.grad_fn is None else points
            velocity = self.field(points)
            log_volume = log_volume + divergence(velocity, points) / self.moves
            points = points + velocity / self.moves
        return 0.5 * points.square().sum(dim=-1) - log_volume


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    size, width, rows, moves = (48, 512, 1024, 2) if DEVICE == "cuda" else (4, 16, 8, 2)
    flow = Flow(Field(size, width), moves).to(DEVICE)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    data = torch.randn(rows, size, device=DEVICE) * 2
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = flow(data).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
