# SPDX-License-Identifier: Apache-2.0
"""Boolean masks as an index in every layer: each asks the host how many rows there are."""

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


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return x + F.gelu(self.linear(x)) * valid[:, None]
        rows = x[valid]
        return x.index_put((valid,), rows + F.gelu(self.linear(rows)))


def main() -> None:
    torch.manual_seed(0)
    model = nn.ModuleList(Layer(512) for _ in range(48)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(512, 512, device=DEVICE)
    valid = torch.rand(512, device=DEVICE) > 0.2
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            y = x
            for layer in model:
                y = layer(y, valid)
            loss = y.float().square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
