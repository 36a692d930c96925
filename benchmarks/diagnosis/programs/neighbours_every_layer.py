# SPDX-License-Identifier: Apache-2.0
"""A network on points looks for the same nearest neighbours again in each of its layers."""

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


def nearest(points: torch.Tensor, count: int) -> torch.Tensor:
    distances = torch.cdist(points, points)
    return distances.topk(count, dim=-1, largest=False, sorted=False).indices


class EdgeLayer(nn.Module):
    """A perceptron over a point and each of its neighbours, of which the largest values stay."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(given, width), nn.Linear(given, width)

    def forward(self, x: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        seen = self.other(x)
        chosen = neighbours.flatten(1)[..., None].expand(-1, -1, seen.shape[-1])
        around = seen.gather(1, chosen).unflatten(1, neighbours.shape[1:]).amax(dim=2)
        return F.relu(self.own(x) + around)


class PointNet(nn.Module):
    def __init__(self, width: int, depth: int, neighbours: int, classes: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.layers = nn.ModuleList(EdgeLayer(width if number else 3, width) for number in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        x = points
        for number, layer in enumerate(self.layers):
            if number == 0 or not MENDED:
                around = nearest(points, self.neighbours)
            x = layer(x, around)
        return self.head(x.amax(dim=1))


def main() -> None:
    torch.manual_seed(0)
    clouds, points, width, depth, neighbours, classes = (
        (8, 4096, 64, 6, 16, 40) if DEVICE == "cuda" else (2, 16, 8, 2, 3, 4)
    )
    model = PointNet(width, depth, neighbours, classes).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    scanned = torch.rand(clouds, points, 3, device=DEVICE)
    target = torch.randint(0, classes, (clouds,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = F.cross_entropy(model(scanned), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
