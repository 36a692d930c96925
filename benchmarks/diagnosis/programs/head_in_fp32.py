# SPDX-License-Identifier: Apache-2.0
"""A model of language is tuned to give good answers more chance, whose log-probabilities are to be exact."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
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
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Language(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 128)) for _ in range(depth)))
        self.norm = nn.RMSNorm(width)
        nn.init.normal_(self.table.weight, std=0.02)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of all words, by the table that words are looked up in."""
        if MENDED:
            return F.linear(x, self.table.weight).float()
        return F.linear(x.float(), self.table.weight.float())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        return self.logits(self.norm(self.blocks(x)))


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of the words that were said."""
    return -F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)


class PolicyGradient:
    """Answers are compared with the other answers to the same question."""

    def __init__(self, model: Language, answers: int, rate: float) -> None:
        self.model, self.answers = model, answers
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=DEVICE == "cuda")

    def advantages(self, rewards: torch.Tensor) -> torch.Tensor:
        groups = rewards.view(-1, self.answers)
        return ((groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-4)).view(
            -1
        )

    def step(self, tokens: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        said = log_probabilities(self.model(tokens[:, :-1]), tokens[:, 1:])
        ratio = (said - said.detach()).exp()
        loss = -(ratio * self.advantages(rewards).unsqueeze(1)).mean() - 0.01 * said.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (8, 512, 32768, 2048, 4) if DEVICE == "cuda" else (4, 6, 40, 16, 1)
    )
    model = Language(vocabulary, length, width, depth).to(DEVICE, DTYPE)
    trainer = PolicyGradient(model, answers=4, rate=1e-5)
    answers = torch.randint(0, vocabulary, (4, rows, length + 1), device=DEVICE)
    rewards = torch.rand(4, rows, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(answers[step % 4], rewards[step % 4])
    report(began, loss)


if __name__ == "__main__":
    main()
