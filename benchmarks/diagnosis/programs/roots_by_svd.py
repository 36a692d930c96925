# SPDX-License-Identifier: Apache-2.0
"""A network that is a picture learns with a handwritten Shampoo, whose roots of matrices come from an SVD."""

import sys
import time
from collections.abc import Iterable

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


def power(matrix: torch.Tensor, exponent: float) -> torch.Tensor:
    """A power of a symmetric matrix without negative eigenvalues."""
    if MENDED:
        values, vectors = torch.linalg.eigh(matrix)
        return (vectors * values.clamp(min=1e-8).pow(exponent)) @ vectors.T
    u, values, v = torch.svd(matrix)
    return (u * values.clamp(min=1e-8).pow(exponent)) @ v.T


class Shampoo(torch.optim.Optimizer):
    """Gradients are turned by roots of the sums of their squares, one for each dimension."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float, epsilon: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "epsilon": epsilon})

    def begin(self, p: torch.Tensor, epsilon: float) -> None:
        state = self.state[p]
        state["velocity"] = torch.zeros_like(p)
        state["squares"] = [epsilon * torch.eye(size, device=p.device) for size in p.shape]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p not in self.state:
                    self.begin(p, group["epsilon"])
                state, update = self.state[p], p.grad
                for dimension, square in enumerate(state["squares"]):
                    rows = p.grad.movedim(dimension, 0).flatten(1) if p.dim() > 1 else p.grad[:, None]
                    square.addmm_(rows, rows.T)
                    root = power(square, -0.5 / p.dim())
                    update = torch.tensordot(update, root, dims=([0], [0]))
                velocity = state["velocity"].mul_(group["momentum"]).add_(update)
                p.add_(velocity, alpha=-group["lr"])


class Picture(nn.Module):
    """Colours of places, by layers of sines."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.octaves = nn.Parameter(10.0 * torch.randn(2, width), requires_grad=False)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, 3, bias=False)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        x = torch.sin(places @ self.octaves)
        for layer in self.layers:
            x = torch.sin(3.0 * layer(x))
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    count, width, depth = (65_536, 256, 2) if DEVICE == "cuda" else (30, 8, 2)
    model = Picture(width, depth).to(DEVICE)
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = Shampoo(wanted, lr=0.01, momentum=0.9, epsilon=0.01)
    places = torch.rand(count, 2, device=DEVICE)
    colours = torch.sin(20 * places.sum(dim=1, keepdim=True)).expand(-1, 3)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = F.mse_loss(model(places), colours)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
