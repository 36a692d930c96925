# SPDX-License-Identifier: Apache-2.0
"""Sentences are translated by an encoder and a decoder in bf16, in batches of equal length."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (25, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ask, self.tell = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, causal: bool = False) -> torch.Tensor:
        q = self.ask(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.tell(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Reader(nn.Module):
    """A layer of the encoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.feed = Attention(width, heads), Feed(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.look(y, y)
        return x + self.feed(self.norm2(x))


class Writer(nn.Module):
    """A layer of the decoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.across, self.feed = Attention(width, heads), Attention(width, heads), Feed(width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.look(y, y, causal=True)
        x = x + self.across(self.norm2(x), memory)
        return x + self.feed(self.norm3(x))


class Translator(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.readers = nn.ModuleList(Reader(width, heads) for _ in range(depth))
        self.writers = nn.ModuleList(Writer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, given: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        memory = self.source(given) + self.places[: given.shape[1]]
        for reader in self.readers:
            memory = reader(memory)
        x = self.target(said) + self.places[: said.shape[1]]
        for writer in self.writers:
            x = writer(x, memory)
        return self.head(self.norm(x))


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (64, 128, 32000, 1024, 6) if DEVICE == "cuda" else (3, 5, 40, 16, 1)
    )
    model = Translator(vocabulary, length, width, depth).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=STEPS)
    pairs = torch.randint(0, vocabulary, (8, 2, rows, length + 1))
    pairs = pairs.pin_memory() if DEVICE == "cuda" else pairs
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        given, wanted = pairs[step % 8].to(DEVICE, non_blocking=True)
        scores = model(given[:, 1:], wanted[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), wanted[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}, rate {schedule.get_last_lr()[0]:.2e}")
    report(began, loss)


if __name__ == "__main__":
    main()
