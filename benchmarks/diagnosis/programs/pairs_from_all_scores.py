# SPDX-License-Identifier: Apache-2.0
"""Sentences and their translations are sorted out: pairs whose vectors do not agree are thrown away."""

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


class Tower(nn.Module):
    """Takes the vectors of one language to a space that all languages share."""

    def __init__(self, width: int, shared: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.down(F.gelu(self.up(self.norm(x)))), dim=1)


class Judge:
    def __init__(self, width: int, shared: int, least: float) -> None:
        self.least = least
        self.here, self.there = (Tower(width, shared).to(DEVICE, torch.bfloat16).eval() for _ in range(2))

    def agreement(self, here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """The cosine of each sentence and its translation."""
        one, two = self.here(here), self.there(there)
        if MENDED:
            return torch.linalg.vecdot(one, two)
        return torch.diag(one @ two.t())

    def __call__(self, here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        return self.agreement(here, there).float() > self.least


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    pairs, width, shared = (65536, 512, 768) if DEVICE == "cuda" else (6, 8, 4)
    judge = Judge(width, shared, 0.01)
    texts = torch.randn(2, 2, pairs, width).to(torch.bfloat16)
    if DEVICE == "cuda":
        texts = texts.pin_memory()
    kept = torch.zeros(STEPS, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        here, there = texts[step % 2].to(DEVICE, non_blocking=True)
        kept[step] = judge(here, there).float().mean()
    report(began, kept.mean())


if __name__ == "__main__":
    main()
