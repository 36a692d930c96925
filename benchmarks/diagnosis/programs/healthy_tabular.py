# SPDX-License-Identifier: Apache-2.0
"""A transformer over the columns of a table, whose kinds share one table of vectors."""

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


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Tabular(nn.Module):
    """A word for each column: a vector by its kind, or a vector times its number."""

    def __init__(self, kinds: list[int], numbers: int, width: int, depth: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(sum(kinds), width)
        self.register_buffer("offsets", torch.tensor([0, *kinds[:-1]]).cumsum(0))
        self.scale = nn.Parameter(torch.randn(numbers, width) * 0.1)
        self.shift = nn.Parameter(torch.zeros(numbers, width))
        self.answer = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.Sequential(*(Block(width, width // 64 or 1) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, kinds: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        measured = torch.addcmul(self.shift, numbers[..., None], self.scale)
        answer = self.answer.expand(len(kinds), -1, -1)
        x = torch.cat((answer, self.kinds(kinds + self.offsets), measured), dim=1)
        return self.head(self.norm(self.blocks(x)[:, 0]))[:, 0]


def main() -> None:
    torch.manual_seed(0)
    rows, columns, numbers, width, depth = (1024, 20, 43, 512, 4) if DEVICE == "cuda" else (4, 3, 2, 16, 2)
    model = Tabular([50 + 7 * column for column in range(columns)], numbers, width, depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    data = torch.randint(0, 50, (STEPS, rows, columns), device=DEVICE)
    measured = torch.randn(STEPS, rows, numbers, device=DEVICE)
    price = measured[..., 0] + measured[..., 1].sin()
    for step, (kinds, values, target) in enumerate(zip(data, measured, price, strict=True)):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            guess = model(kinds, values)
        loss = F.huber_loss(guess.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
