# SPDX-License-Identifier: Apache-2.0
"""A language model whose utilisation is logged, for which a mode counts the products of every step."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


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


class Language(nn.Module):
    def __init__(self, words: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.table(words) + self.places.weight[: words.shape[1]])))


class Utilisation:
    """What share of the GPU's best rate the training reaches."""

    def __init__(self, best: float) -> None:
        self.best, self.done, self.of_a_step = best, 0, 0
        self.began = time.perf_counter()

    @contextmanager
    def watch(self) -> Iterator[None]:
        if MENDED and self.of_a_step:  # all steps have the same shape
            yield
        else:
            with FlopCounterMode(display=False) as counter:
                yield
            self.of_a_step = counter.get_total_flops()
        self.done += self.of_a_step

    def share(self) -> float:
        return self.done / (time.perf_counter() - self.began) / self.best


def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth = (
        (8, 512, 16384, 768, 12) if DEVICE == "cuda" else (2, 6, 30, 16, 1)
    )
    model = Language(vocabulary, length, width, max(1, width // 64), depth).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")
    meter = Utilisation(best=989e12)
    text = torch.randint(vocabulary, (4, rows, length + 1), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        words, wanted = text[step % 4, :, :-1], text[step % 4, :, 1:]
        with meter.watch():
            with torch.autocast(DEVICE, torch.bfloat16):
                scores = model(words)
            loss = F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)
    print(f"{meter.done} operations, {meter.share():.1%} of the best rate")


if __name__ == "__main__":
    main()
