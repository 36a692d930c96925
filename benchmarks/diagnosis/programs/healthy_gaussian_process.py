# SPDX-License-Identifier: Apache-2.0
"""A Gaussian process learns its scales; the factor of its large covariance needs double precision."""

import math
import sys
import time

import torch
from torch import nn

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (14, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Likelihood(torch.autograd.Function):
    """Minus the log likelihood of y under a covariance, whose gradient is made from the inverse."""

    @staticmethod
    def forward(ctx, covariance: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        factor, _ = torch.linalg.cholesky_ex(covariance)
        alpha = torch.cholesky_solve(y[:, None], factor)
        ctx.save_for_backward(factor, alpha)
        logs = factor.diagonal().log().sum()
        return 0.5 * (y @ alpha[:, 0]) + logs + 0.5 * len(y) * math.log(2 * math.pi)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        factor, alpha = ctx.saved_tensors
        inverse = torch.cholesky_inverse(factor)
        return inverse.addmm_(alpha, alpha.mT, alpha=-1.0).mul_(0.5 * gradient), None


class Process(nn.Module):
    """A smooth function of several inputs, each with a length of its own, and noise."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.lengths = nn.Parameter(torch.zeros(inputs, dtype=torch.float64))
        self.height = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.noise = nn.Parameter(torch.full((), -9.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scaled = x * torch.exp(-self.lengths)
        square = scaled.square().sum(dim=1)
        exponent = torch.addmm(-0.5 * (square[:, None] + square), scaled, scaled.mT)
        covariance = torch.exp(exponent + self.height)
        covariance = covariance + torch.diag_embed(self.noise.exp().expand(len(x)))
        return Likelihood.apply(covariance, y) / len(x)


def measure(number: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(number, inputs, device=DEVICE, dtype=torch.float64) * 4
    return x, torch.sin(x[:, 0]) + 0.5 * torch.cos(2 * x[:, 1]) + 0.01 * torch.randn_like(x[:, 0])


def main() -> None:
    torch.manual_seed(0)
    number, inputs = (6144, 6) if DEVICE == "cuda" else (20, 2)
    x, y = measure(number, inputs)
    process = Process(inputs).to(DEVICE)
    optimizer = torch.optim.Adam(process.parameters(), lr=0.02, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = process(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
