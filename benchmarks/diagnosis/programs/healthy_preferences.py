# SPDX-License-Identifier: Apache-2.0
"""A language model learns which of two answers is preferred, next to a frozen copy of itself."""

import copy
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
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Writer(nn.Module):
    def __init__(self, words: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, prompt: int) -> torch.Tensor:
        """How likely each answer is: the words behind the prompt, which all texts share in length."""
        x = self.table(tokens) + self.places.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)[:, prompt - 1 : -1]))
        said = tokens[:, prompt:]
        costs = F.cross_entropy(logits.flatten(0, 1), said.flatten(), reduction="none")
        return -costs.view(said.shape).float().sum(dim=1)


class Preferences:
    def __init__(self, model: Writer, strength: float) -> None:
        self.model, self.strength = model, strength
        self.reference = copy.deepcopy(model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=DEVICE == "cuda")
        self.right = torch.zeros((), device=DEVICE)

    def step(self, pairs: torch.Tensor, prompt: int) -> torch.Tensor:
        """The first half of the rows was preferred to the second."""
        with torch.no_grad():
            expected = self.reference(pairs, prompt)
        more = self.model(pairs, prompt) - expected
        better, worse = more.chunk(2)
        margin = self.strength * (better - worse)
        loss = -F.logsigmoid(margin).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.right += (margin.detach() > 0).float().mean()
        return loss


def main() -> None:
    torch.manual_seed(0)
    rows, length, prompt, words, width, heads, depth = (
        (16, 1024, 512, 32_000, 1024, 8, 12) if DEVICE == "cuda" else (4, 10, 4, 40, 16, 2, 2)
    )
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    learner = Preferences(Writer(words, length, width, heads, depth).to(DEVICE, dtype), strength=0.1)
    asked = torch.randint(0, words, (rows // 2, prompt), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        answers = torch.randint(0, words, (rows, length - prompt), device=DEVICE)
        loss = learner.step(torch.cat((asked.repeat(2, 1), answers), dim=1), prompt)
    report(began, loss)


if __name__ == "__main__":
    main()
