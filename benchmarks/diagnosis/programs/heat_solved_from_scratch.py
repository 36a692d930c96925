# SPDX-License-Identifier: Apache-2.0
"""Heat spreads over a plate of several metals, for many ways to heat it at once, by Crank and Nicolson."""

import sys
import time

import torch

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Plate:
    """Cells on a grid. How well heat passes between neighbours depends on their metals."""

    def __init__(self, side: int, metals: int) -> None:
        self.side, self.cells = side, side * side
        conducts = 0.2 + torch.rand(metals, device=DEVICE)
        patches = torch.randint(0, metals, (side // 4, side // 4), device=DEVICE)
        self.metal = conducts[patches].repeat_interleave(4, 0).repeat_interleave(4, 1)

    def spreading(self) -> torch.Tensor:
        """The matrix that says how fast each cell changes by the heat of all cells."""
        number = torch.arange(self.cells, device=DEVICE).view(self.side, self.side)
        matrix = torch.zeros(self.cells, self.cells, device=DEVICE)
        for here, there in ((number[1:], number[:-1]), (number[:, 1:], number[:, :-1])):
            one, two = here.reshape(-1), there.reshape(-1)
            metal = self.metal.view(-1)
            passes = 2 * metal[one] * metal[two] / (metal[one] + metal[two])
            matrix[one, two] = passes
            matrix[two, one] = passes
        return matrix - matrix.sum(dim=1).diag()


class CrankNicolson:
    """Half of each step by the heat before it, half by the heat after it."""

    def __init__(self, matrix: torch.Tensor, dt: float) -> None:
        same = torch.eye(len(matrix), device=DEVICE)
        self.before, self.after = same + 0.5 * dt * matrix, same - 0.5 * dt * matrix
        self.factors = torch.linalg.lu_factor(self.after) if MENDED else None

    def step(self, heat: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        right = torch.addmm(source, self.before, heat)
        if self.factors is not None:
            return torch.linalg.lu_solve(*self.factors, right)
        return torch.linalg.solve(self.after, right)


class Heaters:
    """Spots on the plate, of which each experiment switches some on for a while."""

    def __init__(self, cells: int, spots: int, experiments: int, dt: float) -> None:
        self.place = torch.randperm(cells, device=DEVICE)[:spots]
        self.power = dt * torch.rand(spots, experiments, device=DEVICE)
        self.beats = 1 + 3 * torch.rand(spots, experiments, device=DEVICE)
        self.source = torch.zeros(cells, experiments, device=DEVICE)

    def at(self, now: float) -> torch.Tensor:
        self.source[self.place] = self.power * (torch.sin(self.beats * now) > 0)
        return self.source


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    side, metals, spots, experiments, dt = (80, 5, 40, 512, 0.25) if DEVICE == "cuda" else (8, 3, 4, 5, 0.25)
    plate = Plate(side, metals)
    solver = CrankNicolson(plate.spreading(), dt)
    heaters = Heaters(plate.cells, spots, experiments, dt)
    watched = torch.arange(0, plate.cells, 37 if DEVICE == "cuda" else 7, device=DEVICE)
    curves = torch.zeros(STEPS, len(watched), experiments, device=DEVICE)
    heat = torch.zeros(plate.cells, experiments, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        heat = solver.step(heat, heaters.at(step * dt))
        curves[step] = heat.index_select(0, watched)
    report(began, curves.mean() + heat.max())


if __name__ == "__main__":
    main()
