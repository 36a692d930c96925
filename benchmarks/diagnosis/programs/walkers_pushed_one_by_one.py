# SPDX-License-Identifier: Apache-2.0
"""A hall is left through its doors by a crowd, in which people keep away from each other and from walls."""

import sys
import time

import torch

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


class Hall:
    """A rectangle with some doors in one of its walls."""

    def __init__(self, long: float, wide: float, doors: int) -> None:
        self.size = torch.tensor([long, wide], device=DEVICE)
        across = (torch.arange(doors, device=DEVICE) + 0.5) * wide / doors
        self.doors = torch.stack((torch.full_like(across, long), across), dim=1)

    def way_out(self, places: torch.Tensor) -> torch.Tensor:
        """The direction to the nearest door."""
        way = self.doors - places.unsqueeze(1)
        nearest = way.square().sum(dim=2).argmin(dim=1)
        way = way.gather(1, nearest.view(-1, 1, 1).expand(-1, 1, 2))[:, 0]
        return way / way.norm(dim=1, keepdim=True).clamp(min=1e-3)

    def push(self, places: torch.Tensor) -> torch.Tensor:
        """Away from the walls."""
        return (-places / 0.2).exp() - ((places - self.size) / 0.2).exp()


class Manners:
    """How people keep away from each other: more from those whom they see."""

    def __init__(self, strength: float, reach: float, behind: float) -> None:
        self.strength, self.reach, self.behind = strength, reach, behind

    def push(self, place: torch.Tensor, looks: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """On those at a place, who look somewhere, by others: the last but one dimension is over these."""
        apart = place - others
        far = apart.square().sum(dim=-1, keepdim=True).add(1e-4).sqrt()
        ahead = -(apart * looks).sum(dim=-1, keepdim=True) / far
        notice = self.behind + (1 - self.behind) * (1 + ahead) / 2
        push = self.strength * (-far / self.reach).exp() * notice / far
        return (push * apart).sum(dim=-2)


class Crowd:
    def __init__(self, people: int, hall: Hall, manners: Manners) -> None:
        self.hall, self.manners = hall, manners
        self.places = torch.rand(people, 2, device=DEVICE) * hall.size
        self.speed = torch.zeros(people, 2, device=DEVICE)
        self.hurry = 1.0 + 0.5 * torch.rand(people, 1, device=DEVICE)

    def crowding(self, looks: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return self.manners.push(self.places.unsqueeze(1), looks.unsqueeze(1), self.places)
        result = torch.empty_like(self.places)
        for walker in range(len(self.places)):
            result[walker] = self.manners.push(self.places[walker], looks[walker], self.places)
        return result

    def walk(self, dt: float) -> None:
        way = self.hall.way_out(self.places)
        force = (self.hurry * way - self.speed) / 0.5 + self.hall.push(self.places) + self.crowding(way)
        self.speed = (self.speed + dt * force).clamp_(-2, 2)
        self.places = torch.minimum((self.places + dt * self.speed).clamp_(min=0), self.hall.size)


class Map:
    """How many people were where, by squares."""

    def __init__(self, hall: Hall, squares: int) -> None:
        self.squares, self.size = squares, hall.size
        self.seen = torch.zeros(squares * squares, device=DEVICE)

    def add(self, crowd: Crowd) -> None:
        square = (crowd.places / self.size * self.squares).long().clamp_(max=self.squares - 1)
        number = square[:, 0] * self.squares + square[:, 1]
        self.seen.index_add_(0, number, torch.ones_like(number, dtype=torch.float32))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    people, doors, squares = (1500, 6, 64) if DEVICE == "cuda" else (12, 2, 4)
    hall = Hall(long=60.0, wide=40.0, doors=doors)
    crowd, seen = Crowd(people, hall, Manners(strength=2.0, reach=0.4, behind=0.3)), Map(hall, squares)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        crowd.walk(dt=0.05)
        seen.add(crowd)
    report(began, crowd.places.mean())
    assert int(seen.seen.sum()) == STEPS * people


if __name__ == "__main__":
    main()
