# SPDX-License-Identifier: Apache-2.0
"""A plasma in two dimensions: electrons move in the field that they make themselves."""

import sys
import time

import torch

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Field:
    """What electrons feel on a periodic grid, by Poisson's equation in Fourier space."""

    def __init__(self, size: int) -> None:
        self.size = size
        rows, columns = torch.fft.fftfreq(size), torch.fft.rfftfreq(size)
        waves = 2 * torch.pi * torch.stack(torch.meshgrid(rows, columns, indexing="ij")).to(DEVICE)
        square = waves.square().sum(dim=0)
        square[0, 0] = torch.inf  # the mean makes no force
        self.factor = -1j * waves / square

    def of(self, density: torch.Tensor) -> torch.Tensor:
        """A row and a column part for each cell, next to each other."""
        waves = torch.fft.rfft2(density.view(self.size, self.size)) * self.factor
        return torch.fft.irfft2(waves, s=(self.size, self.size)).flatten(1).t().contiguous()


class Electrons:
    def __init__(self, count: int, size: int) -> None:
        self.size, self.field = size, Field(size)
        self.places = size * torch.rand(2, count, device=DEVICE)
        self.speeds = 0.2 * torch.randn(2, count, device=DEVICE)
        self.charge = size * size / count

    def corners(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The four cells around each electron, and which share of it each has."""
        low = self.places.floor()
        up = self.places - low
        down = 1 - up
        first = low.long().remainder_(self.size)
        second = torch.where(first == self.size - 1, 0, first + 1)
        corners = []
        for row, row_share in ((first[0], down[0]), (second[0], up[0])):
            for column, column_share in ((first[1], down[1]), (second[1], up[1])):
                corners.append((row * self.size + column, row_share * column_share))
        return corners

    def density(self, corners: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        density = torch.zeros(self.size * self.size, device=DEVICE)
        for cell, share in corners:
            if MENDED:
                density.index_add_(0, cell, share)
            else:
                density.index_put_((cell,), share, accumulate=True)
        return density * self.charge

    def move(self, duration: float) -> torch.Tensor:
        """Returns the energy of the field."""
        corners = self.corners()
        field = self.field.of(self.density(corners))
        for cell, share in corners:
            self.speeds.addcmul_(field.index_select(0, cell).t(), share, value=-duration)
        self.places.add_(self.speeds, alpha=duration).remainder_(self.size)
        return 0.5 * field.square().sum()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    count, size, duration = (12_000_000, 1024, 0.1) if DEVICE == "cuda" else (500, 8, 0.1)
    electrons = Electrons(count, size)
    energies = torch.zeros(STEPS, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        energies[step] = electrons.move(duration)
    report(began, energies.mean() / size**2)


if __name__ == "__main__":
    main()
