# SPDX-License-Identifier: Apache-2.0
"""A critic of images learns five times as often as the generator, whose gradients it computes as well."""

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


class Upwards(nn.Module):
    """A residual block that doubles the size of the image."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, wanted, 3, padding=1, bias=False)
        self.second = nn.Conv2d(wanted, wanted, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(given), nn.BatchNorm2d(wanted)
        self.beside = nn.Conv2d(given, wanted, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.interpolate(F.relu(self.norm1(x)), scale_factor=2)
        y = self.second(F.relu(self.norm2(self.first(y))))
        return y + F.interpolate(self.beside(x), scale_factor=2)


class Generator(nn.Module):
    def __init__(self, noise: int, width: int, doublings: int) -> None:
        super().__init__()
        self.start = nn.Linear(noise, width * 16)
        self.blocks = nn.Sequential(*(Upwards(width, width) for _ in range(doublings)))
        self.last = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        y = self.start(noise).unflatten(1, (-1, 4, 4)).contiguous(memory_format=torch.channels_last)
        return torch.tanh(self.last(self.blocks(y)))


def critic_of(width: int, halvings: int) -> nn.Sequential:
    layers, given = [], 3
    for number in range(halvings):
        layers += [nn.Conv2d(given, width << number, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        given = width << number
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(given * 16, 1))


class Game:
    def __init__(self, rows: int, noise: int, width: int, doublings: int) -> None:
        self.rows, self.noise = rows, noise
        self.generator = Generator(noise, width, doublings).to(DEVICE, memory_format=torch.channels_last)
        self.critic = critic_of(width // 4, doublings).to(DEVICE, memory_format=torch.channels_last)
        make = {"lr": 1e-4, "betas": (0.0, 0.9), "fused": DEVICE == "cuda"}
        self.for_generator = torch.optim.Adam(self.generator.parameters(), **make)
        self.for_critic = torch.optim.Adam(self.critic.parameters(), **make)

    def imagined(self) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return self.generator(torch.randn(self.rows, self.noise, device=DEVICE))

    def score(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return self.critic(images).float()

    def teach_critic(self, real: torch.Tensor) -> torch.Tensor:
        self.for_critic.zero_grad()
        fake = self.imagined()
        if MENDED:
            fake = fake.detach()
        loss = F.relu(1 - self.score(real)).mean() + F.relu(1 + self.score(fake)).mean()
        loss.backward()
        self.for_critic.step()
        return loss

    def teach_generator(self) -> torch.Tensor:
        self.for_generator.zero_grad()
        loss = -self.score(self.imagined()).mean()
        loss.backward()
        self.for_generator.step()
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, noise, width, doublings, rounds = (64, 128, 256, 4, 5) if DEVICE == "cuda" else (2, 4, 8, 1, 2)
    game = Game(rows, noise, width, doublings)
    real = torch.rand(rows, 3, 4 << doublings, 4 << doublings, device=DEVICE) * 2 - 1
    real = real.contiguous(memory_format=torch.channels_last)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        losses = [game.teach_critic(real) for _ in range(rounds)]
        loss = losses[-1].detach() + game.teach_generator()
    report(began, loss)


if __name__ == "__main__":
    main()
