# SPDX-License-Identifier: Apache-2.0
"""People are found again in pictures of other cameras, by vectors that learn from the hardest of triplets."""

import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class People(nn.Module):
    """A vector for each picture; pictures of the same person shall have vectors that are near."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        sizes = (3, width, 2 * width, 4 * width, 8 * width)
        for given, wanted in pairwise(sizes):
            layers += [nn.Conv2d(given, wanted, 3, 2, 1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU()]
            layers += [nn.Conv2d(wanted, wanted, 3, 1, 1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(8 * width, length)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(pictures).mean(dim=(2, 3)))


def distances(vectors: torch.Tensor) -> torch.Tensor:
    squares = vectors.square().sum(dim=1)
    return (squares[:, None] + squares - 2 * vectors @ vectors.t()).clamp(min=1e-6).sqrt()


class HardestTriplets(nn.Module):
    """For each picture: the person's own that is farthest, and the other person's that is nearest."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def hardest(self, far: torch.Tensor, same: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if MENDED:
            own = far.masked_fill(~same, -torch.inf).amax(dim=1)
            return own, far.masked_fill(same, torch.inf).amin(dim=1)
        own, others = [], []
        for anchor in range(len(far)):
            own.append(far[anchor][same[anchor]].max())
            others.append(far[anchor][~same[anchor]].min())
        return torch.stack(own), torch.stack(others)

    def forward(self, vectors: torch.Tensor, people: torch.Tensor) -> torch.Tensor:
        own, others = self.hardest(distances(vectors.float()), people[:, None] == people)
        return F.relu(own - others + self.margin).mean()


class Batches:
    """A few pictures each of some people, which lie on the GPU as bytes."""

    def __init__(self, people: int, shots: int, size: tuple[int, int]) -> None:
        self.people, self.shots = people, shots
        shape = (4 * people * shots, *size, 3)
        self.pictures = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
        self.person = torch.arange(people, device=DEVICE).repeat_interleave(shots)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.randperm(4 * self.people, device=DEVICE)[: self.people] * self.shots
        picked = (first[:, None] + torch.arange(self.shots, device=DEVICE)).flatten()
        pictures = self.pictures.index_select(0, picked).permute(0, 3, 1, 2).to(torch.bfloat16)
        return pictures.div_(127.5).sub_(1), self.person


def main() -> None:
    torch.manual_seed(0)
    people, shots, size, width, length = (
        (64, 4, (256, 128), 64, 512) if DEVICE == "cuda" else (4, 2, (16, 8), 4, 8)
    )
    model = People(width, length).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    batches, triplets = Batches(people, shots, size), HardestTriplets(0.3)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        pictures, person = batches.draw()
        with torch.autocast(DEVICE, torch.bfloat16):
            vectors = model(pictures)
        loss = triplets(vectors, person)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
