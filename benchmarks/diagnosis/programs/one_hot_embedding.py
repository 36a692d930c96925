# SPDX-License-Identifier: Apache-2.0
"""An embedding as a product with one-hot rows."""

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


class Model(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(words, width) * 0.02)
        self.block = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return self.block(F.embedding(tokens, self.table))
        one_hot = F.one_hot(tokens, len(self.table)).to(torch.bfloat16)
        return self.block(one_hot @ self.table)


def main() -> None:
    torch.manual_seed(0)
    words = 32000 if DEVICE == "cuda" else 64
    model = Model(words, 512).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    tokens = torch.randint(0, words, (8192 if DEVICE == "cuda" else 16,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(tokens).float().square().mean()

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
