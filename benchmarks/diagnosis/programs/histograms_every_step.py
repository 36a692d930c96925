# SPDX-License-Identifier: Apache-2.0
"""A board of histograms of activations and gradients, filled in every step and not in some."""

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


class Board:
    """Histograms, means and spreads by name. The history is read when the training is over."""

    def __init__(self, every: int) -> None:
        self.every, self.step = every, 0
        self.history: dict[str, list[torch.Tensor]] = {}

    def add(self, name: str, x: torch.Tensor) -> None:
        if self.step % self.every == 0:
            values = x.detach().float()
            counts = torch.histc(values, bins=64, min=-4.0, max=4.0)
            figures = torch.stack((values.mean(), values.std(), values.abs().amax()))
            self.history.setdefault(name, []).append(torch.cat((counts, figures)))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, width: int, depth: int, board: Board) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, 100)
        self.board = board

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            self.board.add(f"activation {number}", x)
            x.register_hook(lambda gradient, at=number: self.board.add(f"gradient {at}", gradient))
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    rows, width, depth = (8192, 1536, 12) if DEVICE == "cuda" else (8, 16, 2)
    board = Board(every=1000 if MENDED else 1)
    model = Network(width, depth, board).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(rows, width, device=DEVICE)
    target = torch.randint(0, 100, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        board.step = step + 1
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
