# SPDX-License-Identifier: Apache-2.0
"""Two branches on two streams that wait for each other after every operation."""

import sys
import time

import torch
from torch import nn

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


class Branches(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.right = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor, side) -> torch.Tensor:
        left = right = x
        main = torch.cuda.current_stream() if side else None
        if side:
            side.wait_stream(main)
        for one, other in zip(self.left, self.right, strict=True):
            left = torch.tanh(one(left).cumsum(0))
            if side and not MENDED:
                side.wait_stream(main)
            with torch.cuda.stream(side):
                right = torch.tanh(other(right).cumsum(0))
            if side and not MENDED:
                main.wait_stream(side)
        if side:
            main.wait_stream(side)
        return left + right


def main() -> None:
    torch.manual_seed(0)
    width, layers, rows = (256, 12, 8192) if DEVICE == "cuda" else (64, 2, 16)
    model = Branches(width, layers).to(DEVICE)
    side = torch.cuda.Stream() if DEVICE == "cuda" else None
    x = torch.randn(rows, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            for _ in range(4):
                x = model(x, side).clamp(-1, 1)
        loss = x.square().mean()
    report(began, loss)


if __name__ == "__main__":
    main()
