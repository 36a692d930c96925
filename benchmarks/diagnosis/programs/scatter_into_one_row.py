# SPDX-License-Identifier: Apache-2.0
"""An embedding whose rows nearly all are the padding row: its gradient adds into one place."""

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


class Pooled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, width))
        self.head = nn.Linear(width, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(len(tokens), self.table.shape[1], device=tokens.device)
        if MENDED:
            counts = F.one_hot(tokens, 64).sum(0).float()
            rows = (counts[:, None] * self.table).sum(0, keepdim=True)
        else:
            picked = self.table[tokens]
            rows = torch.zeros(1, self.table.shape[1], device=tokens.device).index_add(
                0,
                torch.zeros_like(tokens),
                picked,
            )
        return self.head(rows)


def main() -> None:
    torch.manual_seed(0)
    model = Pooled(512).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    tokens = torch.zeros(400_000 if DEVICE == "cuda" else 64, dtype=torch.long, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = model(tokens).square().mean() / 1e10

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
