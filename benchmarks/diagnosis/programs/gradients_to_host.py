# SPDX-License-Identifier: Apache-2.0
"""All gradients are copied to the host in every step to log their norms."""

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


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Watched:
    """An optimizer that remembers the norm of each gradient."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.inner = torch.optim.AdamW(self.parameters, lr=1e-4, fused=DEVICE == "cuda")
        self.norms: list[list[torch.Tensor]] = []

    def step(self) -> None:
        self.norms.append(self.watch())
        self.inner.step()
        self.inner.zero_grad()

    def watch(self) -> list[torch.Tensor]:
        if MENDED:
            return torch._foreach_norm([p.grad for p in self.parameters])
        norms = []
        for p in self.parameters:
            grad = p.grad.cpu()
            norms.append(grad.norm())
        return norms


def main() -> None:
    torch.manual_seed(0)
    width, rows = (1024, 2048) if DEVICE == "cuda" else (32, 8)
    model = nn.Sequential(*(Block(width) for _ in range(3)), nn.Linear(width, 64)).to(DEVICE)
    optimizer = Watched(model)
    x = torch.randn(rows, width, device=DEVICE)
    target = torch.randint(0, 64, (rows,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x), target)

        loss.backward()
        optimizer.step()
    report(began, loss)
    print(f"norm {torch.stack(optimizer.norms[-1]).norm().item():.5f}")


if __name__ == "__main__":
    main()
