# SPDX-License-Identifier: Apache-2.0
"""Electrons of a large molecule: their density is purified until it holds each of them once, in double."""

import time

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (12, 3) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Molecule:
    """Energies of orbitals and how they mix. Atoms shake, which changes both a little."""

    def __init__(self, orbitals: int) -> None:
        self.still = self.mixing(orbitals, 0.2)
        self.still.diagonal().copy_(torch.where(torch.arange(orbitals, device=DEVICE) % 3 == 0, -1.0, 1.0))

    def mixing(self, orbitals: int, strength: float) -> torch.Tensor:
        each = torch.randn(orbitals, orbitals, dtype=torch.float64, device=DEVICE)
        return (strength / (2 * orbitals) ** 0.5) * (each + each.t())

    def shaken(self) -> torch.Tensor:
        return self.mixing(len(self.still), 0.02).add_(self.still)


def bounds(matrix: torch.Tensor) -> tuple[float, float]:
    """Between which all eigenvalues are, with room: parts that mix at random reach less far than this."""
    most = matrix.square().sum(dim=1).sqrt().max() * 1.6
    low, high = torch.stack((-most, most)).tolist()
    return low, high


class Purification:
    """Each step squares the density or its complement, whichever brings the number of electrons nearer.

    That number decides what comes next, so it is asked for before each product. Errors of one step grow in
    the next ones, and energies are wanted to ten digits: this needs double.
    """

    def __init__(self, electrons: int, tolerance: float, most: int) -> None:
        self.electrons, self.tolerance, self.most = electrons, tolerance, most

    def start(self, energies: torch.Tensor) -> torch.Tensor:
        low, high = bounds(energies)
        density = energies.mul(-1 / (high - low))
        density.diagonal().add_(high / (high - low))
        return density

    def counts(self, density: torch.Tensor) -> tuple[float, float]:
        """Electrons now, and after squaring: for a symmetric matrix that is the sum of its squares."""
        now, squared = torch.stack((density.trace(), torch.linalg.vector_norm(density).square())).tolist()
        return now, squared

    def __call__(self, energies: torch.Tensor) -> torch.Tensor:
        density = self.start(energies)
        room = torch.empty_like(density)
        for _ in range(self.most):
            now, squared = self.counts(density)
            if abs(now - squared) < self.tolerance * self.electrons:
                break
            if abs(squared - self.electrons) < abs(2 * now - squared - self.electrons):
                torch.mm(density, density, out=room)
            else:
                torch.addmm(density, density, density, beta=2, alpha=-1, out=room)
            density, room = room, density
        return density


class Energies:
    def __init__(self) -> None:
        self.each = torch.zeros(STEPS, dtype=torch.float64, device=DEVICE)

    def add(self, step: int, density: torch.Tensor, energies: torch.Tensor) -> None:
        self.each[step] = torch.dot(density.flatten(), energies.flatten()) / len(density)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    orbitals = 4096 if DEVICE == "cuda" else 24
    molecule, total = Molecule(orbitals), Energies()
    purify = Purification(electrons=(orbitals + 2) // 3, tolerance=1e-10, most=60)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        energies = molecule.shaken()
        total.add(step, purify(energies), energies)
    report(began, total.each.mean())


if __name__ == "__main__":
    main()
