# SPDX-License-Identifier: Apache-2.0
"""A frozen language model with low-rank adapters of all its layers learns a new style."""

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
    """A frozen layer and what is learned on top of it, which has a low rank."""

    def __init__(self, given: int, wanted: int, rank: int) -> None:
        super().__init__()
        weight = torch.randn(wanted, given, device=DEVICE, dtype=torch.bfloat16) * given**-0.5
        self.weight, self.scale = nn.Parameter(weight, requires_grad=False), 2.0
        self.down = nn.Parameter(weight.new_empty(rank, given).normal_(std=given**-0.5))
        self.up = nn.Parameter(weight.new_empty(wanted, rank).normal_(std=0.01))

    def adapted(self) -> torch.Tensor:
        return self.weight + self.scale * (self.up @ self.down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if MENDED:
            changed = F.linear(F.linear(x, self.down), self.up)
            return torch.add(F.linear(x, self.weight), changed, alpha=self.scale)
        return F.linear(x, self.adapted())


class Block(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = Adapted(width, 3 * width, rank), Adapted(width, width, rank)
        self.gate, self.up = Adapted(width, inner, rank), Adapted(width, inner, rank)
        self.down = Adapted(inner, width, rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LanguageModel(nn.Module):
    def __init__(self, words: int, width: int, inner: int, depth: int, rank: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width, device=DEVICE)
        heads = max(1, width // 128)
        self.blocks = nn.Sequential(*(Block(width, inner, heads, rank) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False, device=DEVICE)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.table(tokens))))


def freeze_all_but_adapters(model: nn.Module) -> list[nn.Parameter]:
    model.requires_grad_(False)
    adapters = [part for part in model.modules() if isinstance(part, Adapted)]
    learned = [weight for adapter in adapters for weight in (adapter.down, adapter.up)]
    for weight in learned:
        weight.requires_grad_(True)
    return learned


def main() -> None:
    torch.manual_seed(0)
    rows, length, words, width, inner, depth, rank = (
        (2, 192, 32000, 4096, 11008, 8, 16) if DEVICE == "cuda" else (2, 6, 30, 16, 24, 1, 2)
    )
    model = LanguageModel(words, width, inner, depth, rank).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(freeze_all_but_adapters(model), lr=1e-4, fused=DEVICE == "cuda")
    texts = torch.randint(0, words, (4, rows, length + 1), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        text = texts[step % 4]
        scores = model(text[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
