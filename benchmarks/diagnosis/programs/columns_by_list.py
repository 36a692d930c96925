# SPDX-License-Identifier: Apache-2.0
"""A transformer over groups of a table's columns, each picked by a Python list of its numbers."""

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


class Grouped(nn.Module):
    """A word for each group of columns."""

    def __init__(self, groups: list[list[int]], width: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.randn(len(groups), len(groups[0]), width) * len(groups[0]) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(len(groups), 1, width))
        self.register_buffer("numbers", torch.tensor(groups).flatten())

    def picked(self, table: torch.Tensor) -> torch.Tensor:
        """Values of each group: (groups, rows, columns of the group)."""
        if MENDED:
            return table.index_select(1, self.numbers).unflatten(1, self.weight.shape[:2]).transpose(0, 1)
        return torch.stack([table[:, group] for group in self.groups])

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        return (self.picked(table) @ self.weight + self.bias).transpose(0, 1)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Credit(nn.Module):
    """Whether a loan will be paid back."""

    def __init__(self, groups: list[list[int]], width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.into = Grouped(groups, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, 1)

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.into(table)).mean(dim=1))[:, 0]


def main() -> None:
    torch.manual_seed(0)
    rows, columns, count, of_group, width, depth = (
        (256, 600, 192, 6, 192, 3) if DEVICE == "cuda" else (8, 12, 5, 3, 8, 2)
    )
    groups = [torch.randperm(columns)[:of_group].tolist() for _ in range(count)]
    model = Credit(groups, width, width // 32 or 1, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    table = torch.randn(rows, columns, device=DEVICE)
    paid = (table[:, 0] > 0).float()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            score = model(table)
        loss = F.binary_cross_entropy_with_logits(score.float(), paid)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
