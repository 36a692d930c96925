# SPDX-License-Identifier: Apache-2.0
"""A radiance field that draws its rays without repetition, from all pixels of an image."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (15, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Field(nn.Module):
    """Colour and density of points in space, from sines of their coordinates."""

    def __init__(self, width: int, depth: int, bands: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.pi * 2.0 ** torch.arange(bands))
        layers = [nn.Linear(6 * bands, width), nn.ReLU(inplace=True)]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 4))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        angles = (points[..., None] * self.frequencies).flatten(-2)
        return self.layers(torch.cat((angles.sin(), angles.cos()), dim=-1))


class View:
    """A picture with the ray of each of its pixels."""

    def __init__(self, size: int) -> None:
        self.origins = torch.randn(size * size, 3, device=DEVICE)
        self.directions = F.normalize(torch.randn(size * size, 3, device=DEVICE), dim=-1)
        self.colours = torch.rand(size * size, 3, device=DEVICE)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if MENDED:
            chosen = torch.randint(0, len(self.colours), (count,), device=DEVICE)
        else:
            chosen = torch.from_numpy(np.random.choice(len(self.colours), count, replace=False)).to(DEVICE)
        return self.origins[chosen], self.directions[chosen], self.colours[chosen]


def rendered(field: Field, origins: torch.Tensor, directions: torch.Tensor, samples: int) -> torch.Tensor:
    depths = torch.linspace(0.1, 4.0, samples, device=DEVICE)
    points = origins[:, None] + depths[:, None] * directions[:, None]
    found = field(points).float()
    passed = torch.exp(-torch.cumsum(F.relu(found[..., 3]), dim=-1) * (depths[1] - depths[0]))
    seen = torch.cat((torch.ones_like(passed[:, :1]), passed[:, :-1]), dim=-1) - passed
    return (seen[..., None] * found[..., :3].sigmoid()).sum(dim=1)


def main() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    size, rays, samples, width, depth, bands = (
        (800, 4096, 64, 256, 8, 10) if DEVICE == "cuda" else (16, 8, 4, 16, 2, 2)
    )
    field = Field(width, depth, bands).to(DEVICE)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4, fused=DEVICE == "cuda")
    views = [View(size) for _ in range(4)]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        origins, directions, colours = views[step % 4].draw(rays)
        with torch.autocast(DEVICE, torch.bfloat16):
            picture = rendered(field, origins, directions, samples)
        loss = F.mse_loss(picture, colours)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
