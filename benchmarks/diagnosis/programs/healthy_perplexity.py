# SPDX-License-Identifier: Apache-2.0
"""How well a model knows long books: it reads them in windows that overlap, so that no word lacks context."""

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


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor, new: int) -> torch.Tensor:
        """What it knows at the last places, which have not been in a window before."""
        x = self.blocks(self.table(words) + self.places[: words.shape[1]])
        return self.norm(x[:, -new:])

    def surprise(self, known: torch.Tensor, following: torch.Tensor, part: int) -> torch.Tensor:
        """The sum over all words; the scores of a part of them at a time fill the memory."""
        total = torch.zeros((), dtype=torch.float64, device=DEVICE)
        for some, right in zip(known.split(part), following.split(part), strict=True):
            total += F.cross_entropy(self.head(some).float(), right, reduction="sum")
        return total


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    books, window, new, part, vocabulary, width, depth = (
        (16, 1024, 512, 4096, 50304, 1536, 16) if DEVICE == "cuda" else (2, 8, 4, 3, 40, 16, 1)
    )
    model = Language(vocabulary, window, width, depth).to(DEVICE, torch.bfloat16).eval()
    texts = torch.randint(0, vocabulary, (books, window + STEPS * new + 1))
    windows = texts.unfold(1, window + 1, new).transpose(0, 1).contiguous()
    if DEVICE == "cuda":
        windows = windows.pin_memory()
    total = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        words = windows[step].to(DEVICE, non_blocking=True)
        known = model(words[:, :-1], new).flatten(0, 1)
        total += model.surprise(known, words[:, -new:].flatten(), part)
    report(began, total / (STEPS * new * books))


if __name__ == "__main__":
    main()
