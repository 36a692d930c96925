# SPDX-License-Identifier: Apache-2.0
"""A recurrent model of signals with a rare penalty, for which cuDNN is switched off in every step."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

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


PENALTY_EVERY = 50


@contextmanager
def differentiable(twice: bool) -> Iterator[None]:
    """cuDNN's recurrent layers have no second derivatives; the others do."""
    with torch.backends.cudnn.flags(enabled=MENDED and not twice):
        yield


class Stager(nn.Module):
    """The stage of sleep from what electrodes measured."""

    def __init__(self, sensors: int, width: int, stages: int) -> None:
        super().__init__()
        self.front = nn.Conv1d(sensors, width, 9, stride=4, padding=4)
        self.recurrent = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, stages)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.front(signals)).transpose(1, 2)
        y, _state = self.recurrent(y)
        return self.head(self.norm(y).mean(dim=1))


class Trainer:
    def __init__(self, model: Stager) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")

    def loss(self, signals: torch.Tensor, stages: torch.Tensor, penalised: bool) -> torch.Tensor:
        signals = signals.detach().requires_grad_(penalised)
        with differentiable(twice=penalised):
            loss = F.cross_entropy(self.model(signals), stages)
        if penalised:
            (slope,) = torch.autograd.grad(loss, signals, create_graph=True)
            loss = loss + PENALTY_EVERY * slope.square().sum()
        return loss

    def step(self, number: int, signals: torch.Tensor, stages: torch.Tensor) -> torch.Tensor:
        loss = self.loss(signals, stages, penalised=number % PENALTY_EVERY == 0)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, sensors, length, width = (64, 8, 800, 256) if DEVICE == "cuda" else (2, 2, 24, 8)
    trainer = Trainer(Stager(sensors, width, 5).to(DEVICE))
    signals = torch.randn(rows, sensors, length, device=DEVICE)
    stages = torch.randint(0, 5, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(step, signals, stages)
    report(began, loss)


if __name__ == "__main__":
    main()
