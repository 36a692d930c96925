# SPDX-License-Identifier: Apache-2.0
"""A language model learns from rewards: twice from each answer, and stays near to what it was."""

import copy
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


@dataclass
class Answers:
    """Questions with answers; how likely the sampler found each word, and what an answer is worth."""

    ids: torch.Tensor
    then: torch.Tensor
    worth: torch.Tensor

    @classmethod
    def sampled(cls, words: int, groups: int, group: int, asked: int, said: int) -> "Answers":
        rows = groups * group
        questions = torch.randint(0, words, (groups, asked)).repeat_interleave(group, dim=0)
        ids = torch.cat((questions, torch.randint(0, words, (rows, said))), dim=1)
        rewards = torch.randn(groups, group)
        worth = (rewards - rewards.mean(dim=1, keepdim=True)) / rewards.std(dim=1, keepdim=True)
        then = -math.log(words) + 0.1 * torch.randn(rows, said)
        return cls(ids.to(DEVICE), then.to(DEVICE), worth.view(rows, 1).to(DEVICE))

    def parts(self, rows: int) -> Iterator[tuple[torch.Tensor, ...]]:
        yield from zip(*(part.split(rows) for part in (self.ids, self.then, self.worth)), strict=True)


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
    def __init__(self, words: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, ids: torch.Tensor, said: int) -> torch.Tensor:
        """How likely the last words of each row are."""
        x = self.blocks(self.table(ids[:, :-1]) + self.places.weight[: ids.shape[1] - 1])
        logits = self.head(self.norm(x[:, -said:]))
        each = F.cross_entropy(logits.flatten(0, 1), ids[:, -said:].flatten(), reduction="none")
        return -each.view(len(ids), said)


class Learner:
    def __init__(self, policy: Writer, rows: int, epochs: int) -> None:
        self.policy, self.rows, self.epochs = policy, rows, epochs
        self.reference = copy.deepcopy(policy).to(torch.bfloat16).eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, fused=DEVICE == "cuda")

    def loss(
        self, now: torch.Tensor, then: torch.Tensor, first: torch.Tensor, worth: torch.Tensor
    ) -> torch.Tensor:
        ratio, away = (now - then).exp(), first - now
        won = torch.minimum(ratio * worth, ratio.clamp(0.8, 1.2) * worth)
        return (0.04 * (away.exp() - away - 1) - won).mean()

    def learn(self, answers: Answers) -> torch.Tensor:
        said = answers.then.shape[1]
        with torch.no_grad():
            firsts = [self.reference(ids, said).float() for ids in answers.ids.split(self.rows)]
        for _ in range(self.epochs):
            for (ids, then, worth), first in zip(answers.parts(self.rows), firsts, strict=True):
                with torch.autocast(DEVICE, torch.bfloat16):
                    now = self.policy(ids, said)
                loss = self.loss(now.float(), then, first, worth)
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    words, groups, group, asked, said, width, depth, rows = (
        (32000, 2, 12, 384, 384, 1024, 8, 12) if DEVICE == "cuda" else (30, 2, 2, 4, 4, 16, 1, 2)
    )
    learner = Learner(Writer(words, asked + said, width, depth).to(DEVICE), rows, 2)
    rollouts = [Answers.sampled(words, groups, group, asked, said) for _ in range(STEPS)]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = learner.learn(rollouts[step])
    report(began, loss)


if __name__ == "__main__":
    main()
