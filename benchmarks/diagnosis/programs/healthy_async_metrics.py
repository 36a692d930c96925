# SPDX-License-Identifier: Apache-2.0
"""Each step's loss is copied to pinned memory and read a step later, when the next step is queued."""

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


ROWS, WIDTH = (8192, 2048) if DEVICE == "cuda" else (8, 32)


class LossLog:
    """Two pinned numbers and their events take turns: one is being copied while the other is read."""

    def __init__(self) -> None:
        self.slots = torch.zeros(2, pin_memory=DEVICE == "cuda")
        self.copied = [torch.cuda.Event() for _ in range(2)] if DEVICE == "cuda" else None
        self.values: list[float] = []

    def add(self, step: int, loss: torch.Tensor) -> None:
        self.slots[step % 2].copy_(loss.detach(), non_blocking=True)
        if self.copied:
            self.copied[step % 2].record()
        if step > 0:
            self.read(step - 1)

    def read(self, step: int) -> None:
        if self.copied:
            self.copied[step % 2].synchronize()
        self.values.append(self.slots[step % 2].item())


class GatedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(GatedBlock() for _ in range(4)), nn.Linear(WIDTH, 64)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(ROWS, WIDTH, device=DEVICE)
    target = torch.randint(0, 64, (ROWS,), device=DEVICE)
    log = LossLog()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x), target)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.add(step, loss)
    report(began, loss)
    log.read(STEPS - 1)
    print(f"first {log.values[0]:.4f} last {log.values[-1]:.4f}")


if __name__ == "__main__":
    main()
