# SPDX-License-Identifier: Apache-2.0
"""How deep light reaches into skin: many photons fly, lose weight and turn, until they are too faint."""

import math
import sys
import time

import torch

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)

ABSORBED, SCATTERED = 0.8, 9.0  # per mm
FORWARD = 0.7  # the mean cosine of the angle by which light turns
FAINT = 0.05
VOXELS, VOXEL_MM = 48, 0.1


def turned(direction: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """The new direction: the polar angle is drawn after Henyey and Greenstein, the other one is any."""
    inner = (1 - FORWARD**2) / (1 - FORWARD + 2 * FORWARD * one)
    cosine = ((1 + FORWARD**2 - inner.square()) / (2 * FORWARD)).clamp(-1, 1)
    sine, angle = (1 - cosine.square()).sqrt(), 2 * math.pi * two
    x, y, z = direction
    side = (1 - z.square()).clamp_min(1e-6).sqrt()
    across, along = sine * angle.cos(), sine * angle.sin()
    new = torch.stack(
        (
            across * (x * z / side) - along * y / side + x * cosine,
            across * (y * z / side) + along * x / side + y * cosine,
            z * cosine - across * side,
        )
    )
    return new / new.square().sum(dim=0).sqrt()


class Beam:
    def __init__(self, photons: int) -> None:
        self.place = torch.zeros(3, photons, device=DEVICE)
        self.direction = torch.tensor([[0.02], [0.01], [1.0]], device=DEVICE).repeat(1, photons)
        self.weight = torch.ones(photons, device=DEVICE)
        self.heat = torch.zeros(VOXELS**3, device=DEVICE)

    def fly(self, alive: torch.Tensor, draw: torch.Tensor) -> None:
        length = -(1 - draw).log() / (ABSORBED + SCATTERED)
        if MENDED:
            self.place.addcmul_(self.direction, length * alive)
        else:
            self.place[:, alive] += self.direction[:, alive] * length[alive]

    def absorb(self, alive: torch.Tensor) -> None:
        share = ABSORBED / (ABSORBED + SCATTERED)
        if MENDED:
            lost = self.weight * alive * share
            self.weight -= lost
            self.heat.index_add_(0, self.voxel(self.place), lost)
        else:
            lost = self.weight[alive] * share
            self.weight[alive] -= lost
            self.heat.index_add_(0, self.voxel(self.place[:, alive]), lost)

    def scatter(self, alive: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> None:
        if MENDED:
            self.direction = torch.where(alive, turned(self.direction, one, two), self.direction)
        else:
            self.direction[:, alive] = turned(self.direction[:, alive], one[alive], two[alive])

    @staticmethod
    def voxel(place: torch.Tensor) -> torch.Tensor:
        x, y, z = (place / VOXEL_MM + VOXELS / 2).long().clamp_(0, VOXELS - 1)
        return (z * VOXELS + y) * VOXELS + x

    def trace(self, bounces: int) -> torch.Tensor:
        for _ in range(bounces):
            draws = torch.rand(3, len(self.weight), device=DEVICE)
            alive = (self.weight > FAINT) & (self.place[2] >= 0)
            self.fly(alive, draws[0])
            self.absorb(alive)
            self.scatter(alive, draws[1], draws[2])
        return self.heat


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    photons, bounces = (16_384, 32) if DEVICE == "cuda" else (30, 4)
    heat = torch.zeros(VOXELS**3, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        heat += Beam(photons).trace(bounces) / photons
    deep = heat.view(VOXELS, -1).sum(dim=1).cpu()
    took = time.perf_counter() - began
    print(f"step_ms {1000 * took / (STEPS - WARM):.3f} loss {deep[VOXELS // 2 :].sum().item() / STEPS:.6f}")


if __name__ == "__main__":
    main()
