# SPDX-License-Identifier: Apache-2.0
"""Two views of each picture are to get vectors that are alike, and unlike those of all others."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Stage(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(inputs, width, 3, stride=2, padding=1, bias=False)
        self.mix = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.into(x)), inplace=True)
        return F.relu(x + self.norm2(self.mix(x)), inplace=True)


class Encoder(nn.Module):
    def __init__(self, widths: tuple[int, ...], shared: int) -> None:
        super().__init__()
        pairs = zip((3, *widths[:-1]), widths, strict=True)
        self.stages = nn.Sequential(*(Stage(*pair) for pair in pairs))
        self.head = nn.Linear(widths[-1], shared)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.head(self.stages(pictures).mean(dim=(2, 3))), dim=1)


class Trainer:
    def __init__(self, encoder: nn.Module, rows: int) -> None:
        self.encoder, self.same = encoder, torch.arange(rows, device=DEVICE)
        self.optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.alike = torch.zeros((), device=DEVICE)

    def views(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        light = 0.8 + 0.4 * torch.rand(len(pictures), 1, 1, 1, device=DEVICE)
        return pictures * light, pictures.flip(3)

    def loss(self, pictures: torch.Tensor) -> torch.Tensor:
        first, second = self.views(pictures)
        one = self.encoder(first)
        two = self.encoder(second)
        scores = one @ two.t()
        self.alike += scores.diagonal().detach().float().mean()
        scores = scores.float() / 0.1
        return (F.cross_entropy(scores, self.same) + F.cross_entropy(scores.t(), self.same)) / 2

    def step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Gradients of several parts are added up before anything is changed."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=DEVICE)
        for pictures in batch:
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = self.loss(pictures) / len(batch)
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        return total


def main() -> None:
    torch.manual_seed(0)
    sizes = (512, 128, (64, 128, 256, 512), 256) if DEVICE == "cuda" else (4, 16, (4, 6), 5)
    rows, size, widths, shared = sizes
    encoder = Encoder(widths, shared).to(DEVICE, memory_format=torch.channels_last)
    trainer = Trainer(encoder, rows)
    pictures = torch.randn(3, 2, rows, 3, size, size, device=DEVICE)
    batches = [[part.contiguous(memory_format=torch.channels_last) for part in some] for some in pictures]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(batches[step % 3])
    report(began, loss + trainer.alike / STEPS)


if __name__ == "__main__":
    main()
