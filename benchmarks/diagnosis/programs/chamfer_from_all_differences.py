# SPDX-License-Identifier: Apache-2.0
"""Shapes of things as clouds of points: an autoencoder puts them into a vector and back."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

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


class Encoder(nn.Module):
    """Each point goes through the same layers; the largest of each feature is kept."""

    def __init__(self, widths: list[int], code: int) -> None:
        super().__init__()
        pairs = zip([3, *widths], widths, strict=False)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        self.last = nn.Linear(widths[-1], code)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        x = points
        for layer in self.layers:
            x = F.relu_(layer(x))
        return self.last(x.amax(dim=1))


class Decoder(nn.Module):
    def __init__(self, code: int, wide: int, points: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (
            nn.Linear(code, wide),
            nn.Linear(wide, wide),
            nn.Linear(wide, 3 * points),
        )

    def forward(self, code: torch.Tensor) -> torch.Tensor:
        x = F.relu_(self.fc2(F.relu_(self.fc1(code))))
        return torch.tanh(self.fc3(x)).unflatten(1, (-1, 3))


class PointAutoencoder(nn.Module):
    def __init__(self, widths: list[int], code: int, wide: int, points: int) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(widths, code), Decoder(code, wide, points)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(points))


def square_distance(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """From each point of one cloud to each of the other."""
    return torch.sum((src[:, :, None] - dst[:, None]) ** 2, dim=-1)


@torch.no_grad()
def nearest(src: torch.Tensor, dst: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each point of one cloud the nearest of the other, and the other way round."""
    to_dst = torch.baddbmm(dst.square().sum(dim=-1)[:, None], src, dst.mT, alpha=-2)
    to_dst += src.square().sum(dim=-1)[:, :, None]
    return to_dst.argmin(dim=2), to_dst.argmin(dim=1)


def picked(points: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return points.gather(1, at[:, :, None].expand(-1, -1, 3))


def chamfer_distance(made: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    if MENDED:
        true_at, made_at = nearest(made, true)
        there = (made - picked(true, true_at)).square().sum(dim=-1)
        back = (picked(made, made_at) - true).square().sum(dim=-1)
    else:
        dist = square_distance(made, true)
        there, back = torch.min(dist, dim=2)[0], torch.min(dist, dim=1)[0]
    return there.mean() + back.mean()


class ShapeDataset:
    """Clouds of points in the unit ball, all in the memory of the GPU, which are turned before use."""

    def __init__(self, shapes: int, points: int) -> None:
        self.clouds = F.normalize(torch.randn(shapes, points, 3, device=DEVICE), dim=-1)
        self.clouds *= 0.2 + 0.8 * torch.rand(shapes, points, 1, device=DEVICE)

    def random_turn(self, clouds: torch.Tensor) -> torch.Tensor:
        angle = 2 * torch.pi * torch.rand(len(clouds), device=DEVICE)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        x, y, z = clouds.unbind(dim=2)
        return torch.stack((cos * x - sin * y, sin * x + cos * y, z), dim=2)

    def batch(self, step: int, rows: int) -> torch.Tensor:
        first = step * rows % len(self.clouds)
        return self.random_turn(self.clouds[first : first + rows])


def train_one_batch(
    model: PointAutoencoder, optimizer: torch.optim.Optimizer, points: torch.Tensor
) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
        made = model(points)
    loss = chamfer_distance(made.float(), points)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, points, widths, code, wide = (
        (64, 2048, [64, 128, 1024], 1024, 2048) if DEVICE == "cuda" else (2, 12, [4, 8], 8, 8)
    )
    dataset = ShapeDataset(4 * rows, points)
    model = PointAutoencoder(widths, code, wide, points).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = train_one_batch(model, optimizer, dataset.batch(step, rows))
    report(began, loss)


if __name__ == "__main__":
    main()
