# SPDX-License-Identifier: Apache-2.0
"""A chat model is fine-tuned with the settings of a smaller card: each step adds up many small parts."""

import sys
import time

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


class Rotary(nn.Module):
    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(length), 10000 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), dim=1).to(torch.bfloat16))
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), dim=1).to(torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, half = x.shape[-2], x.shape[-1] // 2
        return x * self.cos[:length] + x.roll(half, dims=-1) * self.sin[:length]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.input_norm, self.post_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv_proj, self.o_proj = (nn.Linear(width, size, bias=False) for size in (3 * width, width))
        self.gate_up_proj = nn.Linear(width, 6 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(self.input_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up_proj(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down_proj(F.silu(gate) * up)


class Chat(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        heads = max(1, width // 64)
        rotary = Rotary(length, width // heads)
        self.blocks = nn.Sequential(*(Block(width, heads, rotary) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The sum over all words that count."""
        logits = self.head(self.norm(self.blocks(self.embed(words))))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")


class Conversations:
    """Rows of one length; what the user says is not learnt."""

    def __init__(self, words: int, rows: int, length: int) -> None:
        self.words = torch.randint(0, words, (3, rows, length + 1))
        asked = torch.randint(1, length // 2, (3, rows, 1))
        self.labels = self.words.masked_fill(torch.arange(length + 1) < asked, -100)
        if DEVICE == "cuda":
            self.words, self.labels = self.words.pin_memory(), self.labels.pin_memory()

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        words, labels = self.words[number % 3, :, :-1], self.labels[number % 3, :, 1:]
        counted = int((labels != -100).sum())
        return words.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True), counted


class Trainer:
    def __init__(self, model: Chat, rows: int) -> None:
        self.model, self.per_device_batch = model, rows
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=DEVICE == "cuda")
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=10)

    def training_step(self, words: torch.Tensor, labels: torch.Tensor, counted: int) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = self.model(words, labels) / counted
        loss.backward()
        return loss.detach()

    def step(self, words: torch.Tensor, labels: torch.Tensor, counted: int) -> torch.Tensor:
        total = torch.zeros((), device=DEVICE)
        for part in zip(words.split(self.per_device_batch), labels.split(self.per_device_batch), strict=True):
            total += self.training_step(*part, counted)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return total


def main() -> None:
    torch.manual_seed(0)
    words, rows, length, width, depth = (16000, 16, 384, 768, 10) if DEVICE == "cuda" else (30, 4, 8, 16, 1)
    data = Conversations(words, rows, length)
    trainer = Trainer(Chat(words, length, width, depth).to(DEVICE), rows if MENDED else 1)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.step(*data.batch(step))
    report(began, loss)


if __name__ == "__main__":
    main()
