# SPDX-License-Identifier: Apache-2.0
"""A liquid moves as a network says that its atoms pull: their energy goes backward to their places."""

import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


PRECISION = torch.float32 if MENDED else torch.float64


class Shells(nn.Module):
    """How many neighbours an atom has at each distance, softly counted."""

    def __init__(self, number: int, reach: float) -> None:
        super().__init__()
        self.reach, self.wide = reach, number / reach
        self.register_buffer("middles", torch.linspace(0.2, reach, number))

    def forward(self, apart: torch.Tensor) -> torch.Tensor:
        far = apart.square().sum(dim=-1).add(1e-6).sqrt()
        fade = 0.5 * (math.pi * (far / self.reach).clamp(max=1)).cos() + 0.5
        bumps = ((far.unsqueeze(-1) - self.middles) * self.wide).square().neg().exp()
        return (fade.unsqueeze(-1) * bumps).sum(dim=1)


class Potential(nn.Module):
    """The energy of each atom from the shells about it."""

    def __init__(self, shells: int, width: int, reach: float) -> None:
        super().__init__()
        self.shells = Shells(shells, reach)
        self.one, self.two, self.three = (nn.Linear(before, width) for before in (shells, width, width))
        self.head = nn.Linear(width, 1)

    def forward(self, apart: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.one(self.shells(apart)))
        x = F.silu(self.two(x))
        x = F.silu(self.three(x))
        return self.head(x)[:, 0]


class Neighbours:
    """Which atoms are near: on a grid with some disorder these stay the same for a while."""

    def __init__(self, side: int, number: int) -> None:
        atoms = torch.arange(side**3, device=DEVICE)
        steps = torch.tensor([1, side, side * side], device=DEVICE)
        every = torch.cartesian_prod(*[torch.arange(-2, 3, device=DEVICE)] * 3)
        near = every[every.square().sum(dim=1).argsort(stable=True)][1 : number + 1]
        self.index = (atoms[:, None] + (near * steps).sum(dim=1)) % side**3

    def apart(self, places: torch.Tensor, box: float) -> torch.Tensor:
        apart = places.index_select(0, self.index.flatten()).view(*self.index.shape, 3) - places.unsqueeze(1)
        return apart - box * (apart / box).round()


class Calculator:
    """What an integrator asks for: energy and forces."""

    def __init__(self, potential: Potential, near: Neighbours, box: float) -> None:
        self.potential = potential.to(DEVICE, PRECISION).requires_grad_(False)
        self.near, self.box = near, box

    def __call__(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = places.detach().requires_grad_()
        energy = self.potential(self.near.apart(places, self.box)).sum()
        (slope,) = torch.autograd.grad(energy, places)
        return energy.detach(), -slope


class Liquid:
    def __init__(self, calculator: Calculator, places: torch.Tensor, dt: float) -> None:
        self.calculator, self.dt = calculator, dt
        self.places = places.to(PRECISION)
        self.speed = torch.zeros_like(self.places)
        self.energy, self.force = calculator(self.places)

    def move(self) -> torch.Tensor:
        self.speed.add_(self.force, alpha=self.dt / 2)
        self.places = self.places.add(self.speed, alpha=self.dt)
        self.energy, self.force = self.calculator(self.places)
        self.speed.add_(self.force, alpha=self.dt / 2)
        return self.energy / len(self.places)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    side, number, shells, width = (40, 32, 24, 1024) if DEVICE == "cuda" else (5, 6, 4, 16)
    grid = torch.cartesian_prod(*[torch.arange(side, device=DEVICE)] * 3).flip(1).float()
    places = grid + 0.1 * torch.randn(side**3, 3, device=DEVICE)
    potential = Potential(shells, width, reach=2.5)
    liquid = Liquid(Calculator(potential, Neighbours(side, number), float(side)), places, dt=0.01)
    energies = torch.zeros(STEPS, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        energies[step] = liquid.move()
    report(began, energies.mean())


if __name__ == "__main__":
    main()
