# SPDX-License-Identifier: Apache-2.0
"""How long a repair will take, with what is not known about it: many networks that are one with dropout."""

import sys
import time

import numpy as np
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


class Repairs(nn.Module):
    """Each draw leaves out other neurons, so the draws of a row differ by how little is known about it."""

    def __init__(self, features: int, width: int, depth: int, draws: int) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(features, width), nn.Linear(width, 2)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.draws = draws

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean, and the shares of chance and of ignorance in its spread, of each row."""
        x = F.gelu(self.into(x))  # is the same for all draws, as nothing was left out yet
        x = x.expand(self.draws, *x.shape)
        for layer in self.layers:
            x = F.gelu(layer(F.dropout(x, 0.1, training=True)))
        hours, logs = self.head(x).float().unbind(-1)
        ignorance, mean = torch.var_mean(hours, dim=0)
        return torch.stack((mean, logs.exp().mean(dim=0), ignorance))


class Answers:
    """Go to the host while the next rows are looked at."""

    def __init__(self, rows: int) -> None:
        pinned = DEVICE == "cuda"
        self.rooms = [torch.zeros(3, rows, pin_memory=pinned) for _ in range(2)]
        self.done = [torch.cuda.Event() for _ in range(2)] if pinned else []
        self.unsure = np.zeros(rows)

    def send(self, number: int, answers: torch.Tensor) -> None:
        self.rooms[number % 2].copy_(answers, non_blocking=True)
        if self.done:
            self.done[number % 2].record()

    def read(self, number: int) -> None:
        """How much of the spread more data would take away."""
        if self.done:
            self.done[number % 2].synchronize()
        _, chance, ignorance = self.rooms[number % 2].numpy()
        self.unsure += ignorance / (chance + ignorance)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, features, width, depth, draws = (2048, 512, 4096, 4, 32) if DEVICE == "cuda" else (4, 6, 8, 2, 3)
    model = Repairs(features, width, depth, draws).to(DEVICE, torch.bfloat16).eval()
    asked = torch.randn(4, rows, features).to(torch.bfloat16)
    if DEVICE == "cuda":
        asked = asked.pin_memory()
    answers = Answers(rows)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        answers.send(step, model(asked[step % 4].to(DEVICE, non_blocking=True)))
        if step:
            answers.read(step - 1)
    answers.read(STEPS - 1)
    report(began, torch.from_numpy(answers.unsure).mean() / STEPS)


if __name__ == "__main__":
    main()
