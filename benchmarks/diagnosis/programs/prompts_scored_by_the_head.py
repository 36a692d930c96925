# SPDX-License-Identifier: Apache-2.0
"""A language model learns from rewards: answers that are better than the mean of a question get likelier."""

import math
import sys
import time
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
class Config:
    words: int
    prompt: int
    answer: int
    width: int
    depth: int
    groups: int
    group: int


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Policy(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(c.words, c.width), nn.Embedding(c.prompt + c.answer, c.width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(c.width, max(1, c.width // 64)) for _ in range(c.depth)))
        self.norm = nn.LayerNorm(c.width)

    def forward(self, input_ids: torch.Tensor, logits_to_keep: int = 0) -> torch.Tensor:
        """Logits of the last places, or of all."""
        x = self.blocks(self.table(input_ids) + self.places.weight[: input_ids.shape[1]])
        return F.linear(self.norm(x[:, -logits_to_keep:]), self.table.weight).float()


class Rollouts:
    """Answers that the sampler has given, with its log-probabilities, and what each is worth."""

    def __init__(self, c: Config) -> None:
        rows = c.groups * c.group
        asked = torch.randint(0, c.words, (c.groups, c.prompt)).repeat_interleave(c.group, dim=0)
        self.ids = torch.cat((asked, torch.randint(0, c.words, (rows, c.answer))), dim=1).to(DEVICE)
        self.then = -math.log(c.words) + 0.1 * torch.randn(rows, c.answer, device=DEVICE)
        self.mask = torch.arange(c.answer) < torch.randint(c.answer // 2, c.answer + 1, (rows, 1))
        self.mask = self.mask.float().to(DEVICE)
        rewards = torch.rand(c.groups, c.group, device=DEVICE)
        self.advantages = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()


def per_token_logps(policy: Policy, input_ids: torch.Tensor, answer: int) -> torch.Tensor:
    logits = policy(input_ids, logits_to_keep=answer + 1 if MENDED else 0)
    logits = logits[:, :-1][:, -answer:]  # the last one foretells what comes after the answer
    return -F.cross_entropy(logits.flatten(0, 1), input_ids[:, -answer:].flatten(), reduction="none")


def clipped_loss(logps: torch.Tensor, then: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    ratio = torch.exp(logps - then)
    return -torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])


class Learner:
    def __init__(self, c: Config) -> None:
        self.config, self.policy = c, Policy(c).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-6, fused=DEVICE == "cuda")

    def loss(self, rollouts: Rollouts) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            logps = per_token_logps(self.policy, rollouts.ids, self.config.answer)
        each = clipped_loss(logps.view_as(rollouts.then), rollouts.then, rollouts.advantages)
        return (each * rollouts.mask).sum() / rollouts.mask.sum()

    def step(self, rollouts: Rollouts) -> torch.Tensor:
        loss = self.loss(rollouts)
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.2)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def main() -> None:
    torch.manual_seed(0)
    config = Config(100352, 1024, 256, 768, 6, 1, 6) if DEVICE == "cuda" else Config(30, 8, 4, 16, 1, 2, 2)
    learner, rollouts = Learner(config), [Rollouts(config) for _ in range(2)]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = learner.step(rollouts[step % 2])
    report(began, loss)


if __name__ == "__main__":
    main()
