# SPDX-License-Identifier: Apache-2.0
"""Feed-forward blocks whose GELU and dropout are written out in fp32."""

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


def gelu(x: torch.Tensor) -> torch.Tensor:
    if MENDED:
        return F.gelu(x)
    x = x.float()
    return 0.5 * x * (1.0 + torch.erf(x / 2**0.5))


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    if MENDED:
        return F.dropout(x, p)
    keep = (torch.rand(x.shape, device=x.device) >= p).float()
    return x * keep / (1.0 - p)


class FeedForward(nn.Module):
    def __init__(self, width: int, p: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = dropout(gelu(self.up(self.norm(x))), self.p)
        return x + self.down(hidden)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = F.mse_loss(model(x).float(), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def main() -> None:
    torch.manual_seed(0)
    width, blocks, tokens = (1024, 3, 16384) if DEVICE == "cuda" else (32, 2, 64)
    model = nn.Sequential(*(FeedForward(width, 0.1) for _ in range(blocks))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(tokens, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = train_step(model, optimizer, x)
    report(began, loss)


if __name__ == "__main__":
    main()
