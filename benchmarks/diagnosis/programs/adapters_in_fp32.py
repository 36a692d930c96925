# SPDX-License-Identifier: Apache-2.0
"""A language model learns which answers people like, through small matrices next to its frozen ones."""

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


class Adapted(nn.Module):
    """A frozen layer in bf16; what it learns is a product of two small matrices in full precision."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, dtype=torch.bfloat16).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if MENDED:
            learned = F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))
            return self.base(x) + learned
        learned = F.linear(F.linear(x.float(), self.down), self.up)
        return (self.base(x) + learned).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (
            nn.LayerNorm(width, dtype=torch.bfloat16).requires_grad_(False) for _ in range(2)
        )
        self.qkv, self.out = Adapted(width, 3 * width, rank), Adapted(width, width, rank)
        self.up, self.down = Adapted(width, 4 * width, rank), Adapted(4 * width, width, rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Judge(nn.Module):
    def __init__(self, words: int, width: int, depth: int, rank: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width, dtype=torch.bfloat16).requires_grad_(False)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64), rank) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """How much an answer is liked, told by its last word."""
        return self.head(self.norm(self.blocks(self.table(words))[:, -1].float()))[:, 0]


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth, rank = (
        (16, 1024, 32000, 1024, 8, 16) if DEVICE == "cuda" else (4, 6, 50, 16, 1, 4)
    )
    with torch.device(DEVICE):
        model = Judge(vocabulary, width, depth, rank)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=DEVICE == "cuda")
    answers = torch.randint(0, vocabulary, (4, rows, length))
    if DEVICE == "cuda":
        answers = answers.pin_memory()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        better, worse = model(answers[step % 4].to(DEVICE, non_blocking=True)).chunk(2)
        loss = F.softplus(worse - better).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
