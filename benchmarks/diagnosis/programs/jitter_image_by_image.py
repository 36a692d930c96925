# SPDX-License-Identifier: Apache-2.0
"""Two views of each picture are to look alike; pictures are cut and coloured on the GPU."""

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


class Augment:
    """Cuts a piece out, flips it, and changes its light and contrast."""

    def __init__(self, size: int, least: float, strength: float) -> None:
        self.size, self.least, self.strength = size, least, strength

    def draw(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scale = self.least + (1 - self.least) * torch.rand(rows, 2, device=DEVICE)
        middle = (1 - scale) * (2 * torch.rand(rows, 2, device=DEVICE) - 1)
        flip = torch.where(torch.rand(rows, device=DEVICE) < 0.5, -1.0, 1.0)
        theta = torch.zeros(rows, 2, 3, device=DEVICE)
        theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = flip * scale[:, 0], scale[:, 1], middle
        light, contrast = 1 + self.strength * (2 * torch.rand(2, rows, device=DEVICE) - 1)
        return theta, light, contrast

    def apply(
        self, pictures: torch.Tensor, theta: torch.Tensor, light: torch.Tensor, contrast: torch.Tensor
    ) -> torch.Tensor:
        grid = F.affine_grid(theta, [len(pictures), 3, self.size, self.size], align_corners=False)
        cut = F.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
        cut = (cut * light.view(-1, 1, 1, 1)).clamp(0, 1)
        grey = cut.mean(dim=(1, 2, 3), keepdim=True)
        cut = torch.lerp(grey, cut, contrast.view(-1, 1, 1, 1)).clamp(0, 1)
        return (cut - 0.45) / 0.225

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        changes = self.draw(len(pictures))
        if MENDED:
            return self.apply(pictures, *changes)
        views = []
        for number in range(len(pictures)):
            one = slice(number, number + 1)
            views.append(self.apply(pictures[one], *(change[one] for change in changes)))
        return torch.cat(views)


class Encoder(nn.Module):
    def __init__(self, width: int, shared: int) -> None:
        super().__init__()
        sizes = (3, width, 2 * width, 4 * width, 4 * width)
        layers: list[nn.Module] = []
        for given, wanted in pairwise(sizes):
            layers += [nn.Conv2d(given, wanted, 3, 2, 1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, shared))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.head(self.layers(x).mean(dim=(2, 3))).float(), dim=1)


def alike(one: torch.Tensor, two: torch.Tensor, temperature: float) -> torch.Tensor:
    """Each picture's other view is to be found among the views of all pictures."""
    views = torch.cat((one, two))
    scores = (views @ views.t() / temperature).fill_diagonal_(-1e4)
    other = torch.arange(len(views), device=views.device).roll(len(one))
    return F.cross_entropy(scores, other)


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, shared = (192, 96, 64, 128) if DEVICE == "cuda" else (4, 16, 4, 8)
    augment = Augment(size, 0.4, 0.4)
    model = Encoder(width, shared).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    pictures = torch.randint(0, 256, (8 * rows, 3, size, size), dtype=torch.uint8, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        picked = torch.randint(0, len(pictures), (rows,), device=DEVICE)
        batch = pictures.index_select(0, picked).float() / 255
        views = torch.cat((augment(batch), augment(batch)))
        vectors = model(views.to(torch.bfloat16, memory_format=torch.channels_last))
        loss = alike(*vectors.chunk(2), temperature=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
