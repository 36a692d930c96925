# SPDX-License-Identifier: Apache-2.0
"""Where pollen goes in a greenhouse with two fans: the air drags grains along, panes throw them back."""

import argparse
import time

import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--mended", action="store_true")
MENDED = parser.parse_known_args()[0].mended
gpu = torch.cuda.is_available()
dev = "cuda" if gpu else "cpu"

GRAINS = 4_000_000 if gpu else 300
FRAMES, UNTIMED, SUBSTEPS = (16, 4, 20) if gpu else (3, 1, 4)
DT = 0.01
DRAG = 3.0
SIZE = torch.tensor([12.0, 6.0, 4.0], device=dev)
FANS = torch.tensor([[2.0, 3.0, 3.0], [10.0, 3.0, 2.0]], device=dev)
GRAVITY = torch.tensor([0.0, 0.0, -0.03], device=dev)


def air_at(position):
    """Each fan blows along the house, less with the distance; what blows forth comes back near the panes."""
    near = torch.exp(-torch.cdist(position, FANS).square_() / 8)
    along = near[:, 0] - near[:, 1]
    return torch.stack([along, 0.3 * near[:, 1], 0.2 * near[:, 0] - 0.1], dim=1)


def rebound(position, velocity):
    """Grains that have gone through a pane are put back inside, and fly the other way."""
    if MENDED:
        below, above = position < 0, position > SIZE
        inside = torch.where(above, 2 * SIZE - position, position.abs())
        return inside, torch.where(below | above, -velocity, velocity)
    for axis in range(3):
        below = position[:, axis] < 0
        if below.any():
            position[below, axis] = -position[below, axis]
            velocity[below, axis] *= -1
        above = position[:, axis] > SIZE[axis]
        if above.any():
            position[above, axis] = 2 * SIZE[axis] - position[above, axis]
            velocity[above, axis] *= -1
    return position, velocity


def substep(position, velocity, noise):
    velocity = torch.lerp(velocity, air_at(position), DRAG * DT) + GRAVITY * DT
    velocity.add_(noise.normal_(), alpha=0.2)
    position = torch.add(position, velocity, alpha=DT)
    return rebound(position, velocity)


def dust(position, bins):
    """How many grains are above each square of the floor."""
    cell = (position[:, :2] / SIZE[:2] * bins).long().clamp_(0, bins - 1)
    where = cell[:, 0] * bins + cell[:, 1]
    return torch.zeros(bins * bins, device=dev).index_add_(0, where, torch.ones(len(position), device=dev))


with torch.inference_mode():
    torch.manual_seed(3)
    position = torch.rand(GRAINS, 3, device=dev) * SIZE
    velocity = torch.zeros_like(position)
    noise = torch.empty_like(position)
    seen = torch.zeros(4096 if gpu else 16, device=dev)
    for frame in range(FRAMES):
        if frame == UNTIMED:
            if gpu:
                torch.cuda.synchronize()
            since = time.perf_counter()
        for _ in range(SUBSTEPS):
            position, velocity = substep(position, velocity, noise)
        seen += dust(position, 64 if gpu else 4)
    result = (position.mean() + velocity.square().sum(dim=1).mean() + seen.std() / seen.mean()).item()
    spent = (time.perf_counter() - since) / (FRAMES - UNTIMED)
print(f"step_ms {spent * 1000:.3f} loss {result:.6f}")
