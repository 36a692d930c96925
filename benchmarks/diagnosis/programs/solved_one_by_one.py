# SPDX-License-Identifier: Apache-2.0
"""Gaussian processes for many sensors, each factorised by a call of its own."""

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


class Processes(nn.Module):
    """One Gaussian process for each sensor, with a length scale and a noise of its own."""

    def __init__(self, sensors: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(sensors))
        self.log_noise = nn.Parameter(torch.full((sensors,), -2.0))

    def covariance(self, places: torch.Tensor) -> torch.Tensor:
        """Of all pairs of places of each sensor, which come as (sensors, number)."""
        apart = (places[:, :, None] - places[:, None, :]) / self.log_scale.exp()[:, None, None]
        noise = torch.diag_embed(self.log_noise.exp()[:, None].expand_as(places))
        return torch.exp(-0.5 * apart.square()) + noise

    def forward(self, places: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """The negative log-likelihood."""
        covariance = self.covariance(places)
        if MENDED:
            return unlikelihood(covariance, seen[..., None]).mean()
        parts = [unlikelihood(one, values[:, None]) for one, values in zip(covariance, seen, strict=True)]
        return torch.stack(parts).mean()


def unlikelihood(covariance: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, seen, upper=False)
    log_volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return 0.5 * white.square().sum(dim=(-2, -1)) + log_volume


def main() -> None:
    torch.manual_seed(0)
    sensors, number = (96, 128) if DEVICE == "cuda" else (3, 8)
    model = Processes(sensors).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=DEVICE == "cuda")
    places = torch.linspace(0, 20, number, device=DEVICE).expand(sensors, -1)
    seen = torch.sin(places) + 0.1 * torch.randn(sensors, number, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = model(places, seen)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
