# SPDX-License-Identifier: Apache-2.0
"""A generator and a discriminator trained in turns, with values that stay on the GPU."""

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


def upward(width: int, depth: int) -> nn.Sequential:
    """Noise to pictures, twice as large after each layer."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [
            nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1), nn.Tanh())


def downward(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.LeakyReLU(0.2, inplace=True)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1))


class Duel:
    def __init__(self, width: int, depth: int, size: int) -> None:
        self.size, self.width = size >> depth, width
        self.makes = upward(width, depth).to(DEVICE, memory_format=torch.channels_last)
        self.judges = downward(width, depth).to(DEVICE, memory_format=torch.channels_last)
        self.optimizers = [
            torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=DEVICE == "cuda")
            for net in (self.makes, self.judges)
        ]

    def made(self, rows: int) -> torch.Tensor:
        noise = torch.randn(rows, self.size, self.size, self.width, device=DEVICE)
        return self.makes(noise.permute(0, 3, 1, 2))

    def step(self, real: torch.Tensor) -> torch.Tensor:
        of_maker, of_judge = self.optimizers
        with torch.autocast(DEVICE, torch.bfloat16):
            fake = self.made(len(real))
            caught = F.softplus(self.judges(fake.detach())).mean() + F.softplus(-self.judges(real)).mean()
        caught.backward()
        of_judge.step()
        self.judges.requires_grad_(False)
        with torch.autocast(DEVICE, torch.bfloat16):
            believed = F.softplus(-self.judges(fake)).mean()
        believed.backward()
        of_maker.step()
        self.judges.requires_grad_(True)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return caught + believed


def main() -> None:
    torch.manual_seed(0)
    rows, size, width, depth = (64, 128, 128, 3) if DEVICE == "cuda" else (2, 8, 8, 1)
    duel = Duel(width, depth, size)
    real = torch.rand(rows, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = duel.step(real)
    report(began, loss)


if __name__ == "__main__":
    main()
