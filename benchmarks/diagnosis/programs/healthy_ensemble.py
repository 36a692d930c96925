# SPDX-License-Identifier: Apache-2.0
"""Ten networks learn at once how much a pump still lasts; where they disagree, they are not to be trusted."""

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


class Together(nn.Module):
    """A layer of each network: what comes in and its weights are stacked, for one product of all of them."""

    def __init__(self, networks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(networks, inputs, outputs) * (2 / inputs) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(networks, 1, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Ensemble(nn.Module):
    def __init__(self, networks: int, given: int, width: int, depth: int) -> None:
        super().__init__()
        self.networks = networks
        self.first = Together(networks, given, width)
        self.inner = nn.ModuleList(Together(networks, width, width) for _ in range(depth))
        self.last = Together(networks, width, 2)

    def forward(self, measured: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and the logarithm of the variance that each network expects of each row."""
        x = self.first(measured.expand(self.networks, -1, -1))
        for layer in self.inner:
            x = layer(F.relu(x))
        mean, spread = self.last(F.relu(x)).float().unbind(-1)
        return mean, spread.clamp(-6, 6)


def main() -> None:
    torch.manual_seed(0)
    networks, rows, given, width, depth = (10, 8192, 64, 2048, 5) if DEVICE == "cuda" else (3, 6, 4, 8, 2)
    with torch.device(DEVICE):
        model = Ensemble(networks, given, width, depth)
        measured, lasts = torch.randn(4, rows, given), torch.rand(4, rows)
        drawn = torch.zeros(networks, rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            mean, spread = model(measured[step % 4])
        drawn.exponential_()  # each network weighs the rows in its own way, so that they differ
        misses = 0.5 * (spread + (lasts[step % 4] - mean).square() * (-spread).exp())
        loss = (drawn * misses).mean(dim=1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
