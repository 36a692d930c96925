# SPDX-License-Identifier: Apache-2.0
"""Questions of customers are sorted; every one is read twice, and dropout must not change the answer."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (20, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    """Forgets a tenth of everything, anew in every pass."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.forget = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop if self.training else 0.0)
        x = x + self.forget(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.forget(self.down(F.gelu(self.up(self.norm2(x)))))


class Reader(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int, drop: float, kinds: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        blocks = (Block(width, max(1, width // 64), drop) for _ in range(depth))
        self.blocks = nn.Sequential(nn.Dropout(drop), *blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(words) + self.places[: words.shape[1]])
        return self.head(self.norm(x).mean(dim=1)).float()


def apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How much two answers differ, seen from both sides."""
    first, second = one.log_softmax(dim=-1), other.log_softmax(dim=-1)
    there = F.kl_div(first, second, reduction="batchmean", log_target=True)
    back = F.kl_div(second, first, reduction="batchmean", log_target=True)
    return (there + back) / 2


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth, drop, kinds = (
        (64, 256, 30522, 1024, 10, 0.1, 77) if DEVICE == "cuda" else (3, 6, 30, 16, 1, 0.1, 4)
    )
    model = Reader(vocabulary, length, width, depth, drop, kinds).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=DEVICE == "cuda")
    asked = torch.randint(0, vocabulary, (4, rows, length))
    kind = torch.randint(0, kinds, (4, rows), device=DEVICE)
    if DEVICE == "cuda":
        asked = asked.pin_memory()
    seen = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        words, truth = asked[step % 4].to(DEVICE, non_blocking=True), kind[step % 4]
        with torch.autocast(DEVICE, torch.bfloat16):
            one, other = model(words), model(words)
        wrong = (F.cross_entropy(one, truth) + F.cross_entropy(other, truth)) / 2
        loss = wrong + apart(one, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += loss.detach()
    report(began, seen / STEPS)


if __name__ == "__main__":
    main()
