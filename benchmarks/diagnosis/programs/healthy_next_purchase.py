# SPDX-License-Identifier: Apache-2.0
"""What a customer buys next, by a transformer over earlier purchases and negatives that a batch shares."""

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
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Customers(nn.Module):
    """What a customer wants after each purchase, as a vector in the room of the goods."""

    def __init__(self, goods: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.goods = nn.Embedding(goods, width)
        nn.init.normal_(self.goods.weight, std=0.05)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, bought: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.goods(bought) + self.places))


class SharedNegatives(nn.Module):
    """The next purchase is to be told from some thousand goods, the same ones for a whole batch."""

    def __init__(self, goods: int, many: int) -> None:
        super().__init__()
        self.goods, self.many = goods, many

    def forward(self, wants: torch.Tensor, table: nn.Embedding, following: torch.Tensor) -> torch.Tensor:
        others = torch.randint(0, self.goods, (self.many,), device=following.device)
        right = (wants * table(following)).sum(dim=-1, keepdim=True)
        wrong = wants @ table(others).t()
        wrong = wrong.masked_fill(following[..., None] == others, -torch.inf)
        together = torch.cat((right.to(wrong.dtype), wrong), dim=-1).flatten(0, 1)
        return F.cross_entropy(together, following.new_zeros(len(together)))


def main() -> None:
    torch.manual_seed(0)
    rows, length, goods, width, depth, many = (
        (192, 200, 100_000, 768, 10, 512) if DEVICE == "cuda" else (3, 6, 40, 16, 1, 5)
    )
    model, chosen = Customers(goods, length, width, depth).to(DEVICE), SharedNegatives(goods, many)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    bought = (torch.rand(4, rows, length + 1) ** 2 * goods).to(torch.int32)
    if DEVICE == "cuda":
        bought = bought.pin_memory()
    total = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        history = bought[step % 4].to(DEVICE, non_blocking=True).long()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = chosen(model(history[:, :-1]), model.goods, history[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.detach()
    report(began, total / STEPS)


if __name__ == "__main__":
    main()
