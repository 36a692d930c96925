# SPDX-License-Identifier: Apache-2.0
"""An optimizer that makes its updates orthogonal, with products in full precision."""

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


def orthogonal(update: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration: singular values near 1, which needs no precision."""
    x = update.to(torch.bfloat16 if MENDED else torch.float32)
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.to(update.dtype)


class Muon(torch.optim.Optimizer):
    def __init__(self, matrices: list[nn.Parameter], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p.grad))
                mean.lerp_(p.grad, 1 - group["momentum"])
                wide = mean if mean.shape[0] <= mean.shape[1] else mean.mT
                moved = orthogonal(wide)
                p.add_(moved if wide is mean else moved.mT, alpha=-group["lr"])


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))).square())


def main() -> None:
    torch.manual_seed(0)
    rows, width, depth = (4096, 1024, 6) if DEVICE == "cuda" else (4, 8, 2)
    model = nn.Sequential(*(Layer(width) for _ in range(depth))).to(DEVICE)
    optimizer = Muon(list(model.parameters()))
    x = torch.randn(rows, width, device=DEVICE)
    wanted = x.roll(1, dims=-1)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.mse_loss(model(x).float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
