# SPDX-License-Identifier: Apache-2.0
"""Points around a car, from many turns of its laser, become small boxes of space with what is in them."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Sweep:
    """Points of several cars: whose they are, where they are, and how bright."""

    def __init__(self, cars: int, points: int, reach: float) -> None:
        self.car = torch.arange(cars, dtype=torch.uint8).repeat_interleave(points)
        near = torch.randn(cars * points, 3) * torch.tensor([reach / 3, reach / 3, 1.0])
        self.points = torch.cat((near, torch.rand(cars * points, 1)), dim=1)
        if DEVICE == "cuda":
            self.car, self.points = self.car.pin_memory(), self.points.pin_memory()

    def upload(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.car.to(DEVICE, non_blocking=True), self.points.to(DEVICE, non_blocking=True)


class Voxels:
    def __init__(self, size: float, cells: tuple[int, int, int]) -> None:
        self.size, self.cells = size, cells
        self.half = torch.tensor(cells, device=DEVICE) // 2
        self.last = torch.tensor(cells, device=DEVICE) - 1

    def places(self, car: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        """The box of each point: car, x, y and z; what is outside counts for the edge."""
        box = torch.div(points[:, :3], self.size).floor_().long() + self.half
        return torch.cat((car.long()[:, None], torch.minimum(box.clamp_(min=0), self.last)), dim=1)

    def distinct(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All boxes that have points, in order, and the number of each point's box."""
        if MENDED:
            across, deep, high = self.cells
            car, x, y, z = places.unbind(dim=1)
            keys, number = torch.unique(((car * across + x) * deep + y) * high + z, return_inverse=True)
            column = keys // high
            row = column // deep
            return torch.stack((row // across, row % across, column % deep, keys % high), dim=1), number
        return torch.unique(places, dim=0, return_inverse=True)

    def __call__(self, sweep: Sweep) -> tuple[torch.Tensor, torch.Tensor]:
        """Boxes, and for each the mean of its points and their number."""
        car, points = sweep.upload()
        boxes, number = self.distinct(self.places(car, points))
        points = F.pad(points, (0, 1), value=1.0)
        total = torch.zeros(len(boxes), points.shape[1], device=DEVICE).index_add_(0, number, points)
        return boxes, torch.cat((total[:, :-1] / total[:, -1:], total[:, -1:]), dim=1)


class Pillars(nn.Module):
    """A view from above: the strongest signs of all boxes over each place on the ground."""

    def __init__(self, cells: tuple[int, int, int], cars: int, width: int) -> None:
        super().__init__()
        self.cells, self.cars = cells, cars
        self.register_buffer("sizes", torch.tensor(cells))
        self.signs = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, boxes: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
        middle = boxes[:, 1:] / self.sizes
        signs = self.signs(torch.cat((means, middle), dim=1).to(torch.bfloat16)).float()
        ground = (boxes[:, 0] * self.cells[0] + boxes[:, 1]) * self.cells[1] + boxes[:, 2]
        above = torch.zeros(self.cars * self.cells[0] * self.cells[1], signs.shape[1], device=DEVICE)
        return above.index_add_(0, ground, signs)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    cars, points, reach, cells, width = (
        (8, 800_000, 50.0, (512, 512, 40), 16) if DEVICE == "cuda" else (2, 40, 2.0, (4, 4, 2), 8)
    )
    sweeps = [Sweep(cars, points, reach) for _ in range(2)]
    voxels = Voxels(2 * reach / cells[0], cells)
    model = Pillars(cells, cars, width).to(DEVICE, torch.bfloat16).eval()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        above = model(*voxels(sweeps[step % 2]))
    report(began, above.mean())


if __name__ == "__main__":
    main()
