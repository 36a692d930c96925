# SPDX-License-Identifier: Apache-2.0
"""The heat equation solved by a network: second derivatives by differentiating twice, with wide layers."""

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


class Temperature(nn.Module):
    """Of places in a plate (two columns) at a time (the third)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(3, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.into(points))
        for layer in self.layers:
            y = torch.tanh(layer(y))
        return self.head(y)[:, 0]


def slope(of: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Every row of `of` depends on its own point alone, so one pass back gives all slopes."""
    return torch.autograd.grad(of.sum(), points, create_graph=True)[0]


class Plate:
    """Points are drawn anew in each step: inside, at the beginning and on the edge."""

    def __init__(self, inside: int, around: int, spread: float) -> None:
        self.inside, self.around, self.spread = inside, around, spread

    def residual(self, model: Temperature) -> torch.Tensor:
        points = torch.rand(self.inside, 3, device=DEVICE, requires_grad=True)
        first = slope(model(points), points)
        bent = slope(first[:, 0], points)[:, 0] + slope(first[:, 1], points)[:, 1]
        return (first[:, 2] - self.spread * bent).square().mean()

    def known(self, model: Temperature) -> torch.Tensor:
        """A warm spot at the beginning, and an edge that is always cold."""
        start, edge = torch.rand(2, self.around, 3, device=DEVICE).unbind()
        start[:, 2] = 0
        edge[:, 0] = edge[:, 0].round()
        spot = torch.exp(-20 * (start[:, :2] - 0.5).square().sum(dim=1))
        found, cold = model(torch.cat((start, edge))).chunk(2)
        return F.mse_loss(found, spot) + cold.square().mean()


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    inside, around, width, depth = (8192, 2048, 2048, 3) if DEVICE == "cuda" else (6, 4, 8, 2)
    model, plate = Temperature(width, depth).to(DEVICE), Plate(inside, around, 0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = plate.residual(model) + 10 * plate.known(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
