# SPDX-License-Identifier: Apache-2.0
"""Uncertainty from random depth: each branch of a transformer is skipped by a coin that the GPU throws."""

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


BRANCH_KEPT = 0.9


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """Transformer whose branches are skipped at random, also when it predicts."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        branches: list[nn.Module] = []
        for _ in range(depth):
            branches.append(Attention(width, max(width // 64, 1)))
            branches.append(
                nn.Sequential(
                    nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
                )
            )
        self.branches = nn.ModuleList(branches)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        coins = torch.rand(len(self.branches), device="cpu" if MENDED else DEVICE)
        for branch, coin in zip(self.branches, coins, strict=True):
            if coin < BRANCH_KEPT:
                x = x + branch(x)
        return self.head(x.mean(dim=1))


@torch.inference_mode()
def spread_of(model: nn.Module, x: torch.Tensor, passes: int) -> torch.Tensor:
    """How much the predictions of several passes differ."""
    return torch.stack([model(x).float().softmax(dim=-1) for _ in range(passes)]).std(dim=0).mean()


def main() -> None:
    torch.manual_seed(0)
    rows, tokens, width, depth, passes = (16, 128, 768, 24, 4) if DEVICE == "cuda" else (2, 4, 16, 2, 2)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    model = Encoder(width, depth).to(DEVICE, dtype).eval()
    x = torch.randn(rows, tokens, width, device=DEVICE, dtype=dtype)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        spread = spread_of(model, x, passes)
    report(began, spread)


if __name__ == "__main__":
    main()
