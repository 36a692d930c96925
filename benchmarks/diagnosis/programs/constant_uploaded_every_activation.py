# SPDX-License-Identifier: Apache-2.0
"""Monte Carlo moves of molecules, by the energies of a network whose activation makes log(2) on the GPU."""

import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def shifted_softplus(x: torch.Tensor) -> torch.Tensor:
    """Softplus that is zero at zero."""
    log_2 = math.log(2.0) if MENDED else torch.log(torch.tensor(2.0, device=x.device))
    return F.softplus(x) - log_2


class Smear(nn.Module):
    """Distances as values of Gaussians around several centres."""

    def __init__(self, centres: int, radius: float) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.0, radius, centres))
        self.sharp = -0.5 * (centres / radius) ** 2

    def forward(self, distance: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.sharp * (distance[..., None] - self.centres).square())


class Interaction(nn.Module):
    """Atoms hear their neighbours through a filter made of the distance."""

    def __init__(self, width: int, centres: int) -> None:
        super().__init__()
        self.filter1, self.filter2 = nn.Linear(centres, width), nn.Linear(width, width)
        self.into, self.mix = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, smeared: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        filters = shifted_softplus(self.filter1(smeared))
        filters = shifted_softplus(self.filter2(filters)) * near
        heard = torch.einsum("mijc,mjc->mic", filters, self.into(x))
        return x + self.out(shifted_softplus(self.mix(heard)))


class Energy(nn.Module):
    def __init__(self, kinds: int, width: int, depth: int, centres: int, radius: float) -> None:
        super().__init__()
        self.radius = radius
        self.atoms, self.smear = nn.Embedding(kinds, width), Smear(centres, radius)
        self.layers = nn.ModuleList(Interaction(width, centres) for _ in range(depth))
        self.last, self.head = nn.Linear(width, width // 2), nn.Linear(width // 2, 1)

    def forward(self, kinds: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        way = places[:, :, None] - places[:, None]
        distance = way.square().sum(dim=-1).clamp(min=1e-6).sqrt()
        near = 0.5 * (torch.cos(distance * (math.pi / self.radius)) + 1.0) * (distance < self.radius)
        x, smeared = self.atoms(kinds), self.smear(distance)
        for layer in self.layers:
            x = layer(x, smeared, near[..., None])
        return self.head(shifted_softplus(self.last(x))).sum(dim=(1, 2))


class Sampler:
    """Each sweep moves all molecules a little and keeps the moves that Metropolis accepts."""

    def __init__(self, energy: Energy, kinds: torch.Tensor, places: torch.Tensor) -> None:
        self.energy, self.kinds, self.places = energy, kinds, places
        self.now = energy(kinds, places)

    def sweep(self) -> None:
        moved = self.places + 0.05 * torch.randn_like(self.places)
        then = self.energy(self.kinds, moved)
        kept = torch.rand_like(then) < torch.exp(self.now - then)
        self.places = torch.where(kept[:, None, None], moved, self.places)
        self.now = torch.where(kept, then, self.now)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    molecules, atoms, sweeps, width, depth, centres = (
        (48, 16, 15, 128, 6, 50) if DEVICE == "cuda" else (3, 4, 2, 8, 2, 5)
    )
    energy = Energy(10, width, depth, centres, 5.0).to(DEVICE)
    kinds = torch.randint(10, (molecules, atoms), device=DEVICE)
    sampler = Sampler(energy, kinds, 2.0 * torch.randn(molecules, atoms, 3, device=DEVICE))
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        for _ in range(sweeps):
            sampler.sweep()
    report(began, sampler.now.mean())


if __name__ == "__main__":
    main()
