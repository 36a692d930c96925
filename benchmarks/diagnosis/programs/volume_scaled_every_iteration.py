# SPDX-License-Identifier: Apache-2.0
"""Optical flow whose volume of all pairs is scaled anew in each of its refinements."""

import sys
import time

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


def convolution(given: int, width: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(given, width, 3, stride, 1), nn.ReLU())


class Refinement(nn.Module):
    """A better flow from what the volume shows around the present one."""

    def __init__(self, seen: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            convolution(seen + width + 2, width), convolution(width, width), nn.Conv2d(width, 2, 3, padding=1)
        )

    def forward(self, seen: torch.Tensor, context: torch.Tensor, flow: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat((seen, context, flow), dim=1))


class Flow(nn.Module):
    def __init__(self, width: int, radius: int, rounds: int) -> None:
        super().__init__()
        sizes = ((3, width // 2), (width // 2, width), (width, width))
        self.features = nn.Sequential(*(convolution(*size, stride=2) for size in sizes))
        self.refinement = Refinement((2 * radius + 1) ** 2, width)
        self.rounds, self.scale = rounds, width**-0.5
        moves = torch.arange(-radius, radius + 1.0)
        self.register_buffer("around", torch.cartesian_prod(moves, moves).flip(-1))

    def correlate(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Products of each place of the first image with all places of the second."""
        if MENDED:
            first = first * self.scale
        return first.flatten(2).mT @ second.flatten(2)

    def look(self, volume: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """The volume around the place to which each place moves."""
        if not MENDED:
            volume = volume * self.scale
        rows, _, height, width = where.shape
        places = where.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) + self.around[:, None]
        x, y = places.unbind(dim=-1)
        grid = torch.stack((2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1), dim=-1)
        maps = volume.reshape(-1, 1, height, width)
        seen = F.grid_sample(maps, grid, align_corners=True)
        return seen.reshape(rows, height, width, -1).permute(0, 3, 1, 2)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        one, other = self.features(first), self.features(second)
        volume = self.correlate(one, other)
        height, width = one.shape[2:]
        across = torch.arange(width, device=one.device).expand(height, -1)
        down = torch.arange(height, device=one.device)[:, None].expand(-1, width)
        start = torch.stack((across, down)).float()
        flow = torch.zeros_like(start).repeat(len(one), 1, 1, 1)
        for _ in range(self.rounds):
            flow = flow + self.refinement(self.look(volume, start + flow), one, flow)
        return flow


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, height, width, channels, radius, rounds = (
        (8, 512, 768, 64, 3, 20) if DEVICE == "cuda" else (2, 32, 48, 8, 1, 2)
    )
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Flow(channels, radius, rounds).to(DEVICE)
    film = torch.rand(2, rows, 3, height, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        flow = model(film[0], film[1])
    report(began, flow.square().mean())


if __name__ == "__main__":
    main()
