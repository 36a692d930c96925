# SPDX-License-Identifier: Apache-2.0
"""Photographs are enlarged four times, so that they look alike to a network that knows what things are."""

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


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.conv2(F.relu(self.conv1(x), inplace=True))


class Enlarger(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into, self.body = nn.Conv2d(3, width, 3, padding=1), nn.Sequential()
        self.body.extend(Residual(width) for _ in range(depth))
        self.head = nn.Conv2d(width, 3 * 16, 3, padding=1)

    def forward(self, small: torch.Tensor) -> torch.Tensor:
        x = self.into(small)
        return F.pixel_shuffle(self.head(x + self.body(x)), 4)


class Seeing(nn.Module):
    """The convolutions of a classifier of pictures, which is done with learning."""

    def __init__(self, stages: list[tuple[int, int]], wanted: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        given = 3
        for width, convolutions in stages:
            for _ in range(convolutions):
                layers += [nn.Conv2d(given, width, 3, padding=1), nn.ReLU(inplace=True)]
                given = width
            layers.append(nn.MaxPool2d(2))
        self.layers, self.wanted = nn.ModuleList(layers), wanted
        self.requires_grad_(False)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """What the wanted layer sees."""
        seen = [pictures]
        for layer in self.layers[: self.wanted] if MENDED else self.layers:
            seen.append(layer(seen[-1]))
        return seen[self.wanted]


class Likeness(nn.Module):
    """How far two pictures are from each other, point by point and as a network sees them."""

    def __init__(self, seeing: Seeing) -> None:
        super().__init__()
        self.seeing = seeing

    def forward(self, guess: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.seeing(truth)
        return F.l1_loss(guess, truth) + 0.1 * F.mse_loss(self.seeing(guess), wanted)


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, depth, stages = (
        (64, 64, 64, 6, [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)])
        if DEVICE == "cuda"
        else (2, 8, 4, 1, [(4, 1), (4, 2), (8, 1), (8, 1)])
    )
    layout = torch.channels_last
    model = Enlarger(width, depth).to(DEVICE, memory_format=layout)
    seeing = Seeing(stages, 9 if DEVICE == "cuda" else 5)
    likeness = Likeness(seeing.to(DEVICE, torch.bfloat16, memory_format=layout).eval())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    truth = torch.rand(2, rows, 3, 4 * size, 4 * size, device=DEVICE, dtype=torch.bfloat16)
    truth = [part.contiguous(memory_format=layout) for part in truth]
    small = [F.avg_pool2d(part, 4) for part in truth]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = likeness(model(small[step % 2]), truth[step % 2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
