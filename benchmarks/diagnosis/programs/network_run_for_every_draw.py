# SPDX-License-Identifier: Apache-2.0
"""Spots on skin are judged with doubt: dropout in the last layers is drawn many times for each picture."""

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


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Vision(nn.Module):
    """A vector of what is in a picture, from a transformer over its patches."""

    def __init__(self, size: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.into(pictures).flatten(2).mT + self.places)).mean(dim=1)


class Doctor(nn.Module):
    def __init__(self, vision: Vision, width: int, kinds: int) -> None:
        super().__init__()
        self.vision = vision
        self.judge = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.3), nn.Linear(width, kinds)
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.judge(self.vision(pictures))


class Doubt:
    """The mean of many draws of dropout, and how much the draws contradict one another."""

    def __init__(self, doctor: Doctor, draws: int) -> None:
        self.doctor, self.draws = doctor.eval(), draws
        for part in doctor.modules():
            if isinstance(part, nn.Dropout):
                part.train()

    def drawn(self, pictures: torch.Tensor) -> torch.Tensor:
        if MENDED:
            seen = self.doctor.vision(pictures)
            scores = [self.doctor.judge(seen) for _ in range(self.draws)]
        else:
            scores = [self.doctor(pictures) for _ in range(self.draws)]
        return torch.stack(scores).float().softmax(dim=-1)

    def __call__(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chances = self.drawn(pictures)
        mean = chances.mean(dim=0)
        return mean, entropy(mean) - entropy(chances).mean(dim=0)


def entropy(chances: torch.Tensor) -> torch.Tensor:
    return -torch.special.xlogy(chances, chances).sum(dim=-1)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, size, patch, width, depth, kinds, draws = (
        (64, 224, 16, 768, 8, 9, 20) if DEVICE == "cuda" else (3, 8, 4, 16, 1, 3, 4)
    )
    doctor = Doctor(Vision(size, patch, width, depth), width, kinds).to(DEVICE, torch.bfloat16)
    judge = Doubt(doctor, draws)
    pictures = torch.randint(0, 256, (4, rows, 3, size, size), dtype=torch.uint8)
    truth = torch.randint(0, kinds, (4, rows), device=DEVICE)
    if DEVICE == "cuda":
        pictures = pictures.pin_memory()
    right, unsure = torch.zeros((), device=DEVICE), torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        batch = pictures[step % 4].to(DEVICE, non_blocking=True)
        mean, doubt = judge(batch.to(torch.bfloat16).div_(127.5).sub_(1))
        right += (mean.argmax(dim=-1) == truth[step % 4]).float().mean()
        unsure += doubt.mean()
    report(began, (right + unsure) / STEPS)


if __name__ == "__main__":
    main()
