# SPDX-License-Identifier: Apache-2.0
"""Grains of dust in a trap of light: how far they wander is read from all places where they have been."""

import math
import sys
import time

import torch

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Trap:
    """Pulls grains to a sphere about the beam of light: outward from inside, inward from outside."""

    def __init__(self, strength: float, radius: float) -> None:
        self.strength, self.radius = strength, radius

    def pull(self, place: torch.Tensor) -> torch.Tensor:
        far = torch.linalg.vector_norm(place, dim=0).mul_(1 / self.radius)
        return torch.addcmul(place, place, far.square_(), value=-1).mul_(self.strength)


class Air:
    """Slows grains down and pushes them at random, as warm as it is."""

    def __init__(self, drag: float, warmth: float, dt: float) -> None:
        self.keep = math.exp(-drag * dt)
        self.kick = math.sqrt(warmth * (1 - self.keep**2))

    def push(self, speed: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(speed).mul_(self.kick).add_(speed, alpha=self.keep)


class Film:
    """The places of all grains, at each moment."""

    def __init__(self, moments: int, grains: int) -> None:
        self.count = 0
        if MENDED:
            self.places = torch.empty(moments, 3, grains, device=DEVICE)
        else:
            self.places = torch.empty(0, 3, grains, device=DEVICE)

    def add(self, place: torch.Tensor) -> None:
        if MENDED:
            self.places[self.count] = place
        else:
            self.places = torch.cat((self.places, place.unsqueeze(0)))
        self.count += 1

    def wandered(self) -> torch.Tensor:
        """The mean square of how far grains came, for each moment after the first."""
        return (self.places[1:] - self.places[0]).square_().sum(dim=1).mean(dim=1)


class Experiment:
    def __init__(self, trap: Trap, air: Air, dt: float) -> None:
        self.trap, self.air, self.dt = trap, air, dt

    def move(
        self, place: torch.Tensor, speed: torch.Tensor, pull: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Half a step by the pull, half a step on, the air, and the same again the other way."""
        speed = speed.add(pull, alpha=self.dt / 2)
        place = place.add(speed, alpha=self.dt / 2)
        speed = self.air.push(speed)
        place.add_(speed, alpha=self.dt / 2)
        pull = self.trap.pull(place)
        return place, speed.add_(pull, alpha=self.dt / 2), pull

    def run(self, place: torch.Tensor, moments: int) -> torch.Tensor:
        film = Film(moments, place.shape[1])
        speed, pull = torch.zeros_like(place), self.trap.pull(place)
        for _ in range(moments):
            film.add(place)
            place, speed, pull = self.move(place, speed, pull)
        return film.wandered()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    grains, moments = (400_000, 80) if DEVICE == "cuda" else (20, 6)
    dt, wandered, trap = 0.01, torch.zeros(moments - 1, device=DEVICE), Trap(strength=1.0, radius=0.5)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        experiment = Experiment(trap, Air(drag=2.0, warmth=0.5 + 0.01 * step, dt=dt), dt)
        wandered += experiment.run(0.3 * torch.randn(3, grains, device=DEVICE), moments)
    report(began, wandered[-1] / STEPS)


if __name__ == "__main__":
    main()
