# SPDX-License-Identifier: Apache-2.0
"""Attention heads in a Python loop, a small product and softmax for each."""

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


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 3, 0, 1, 4)
        if MENDED:
            y = F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)))
            return x + self.out(y.transpose(1, 2).flatten(-2))
        outs = []
        for head in range(self.heads):
            weights = torch.softmax(q[head] @ k[head].mT / 8.0, dim=-1)
            outs.append(weights @ v[head])
        return x + self.out(torch.cat(outs, dim=-1))


def main() -> None:
    torch.manual_seed(0)
    width = 1024 if DEVICE == "cuda" else 64
    model = nn.Sequential(*(Attention(width, 16) for _ in range(8))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    x = torch.randn(4, 128, width, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(x).float().square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
