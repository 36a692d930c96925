# SPDX-License-Identifier: Apache-2.0
"""Every layer of a transformer makes its window mask anew on the host and moves it to the GPU."""

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


def window_mask(length: int, window: int) -> torch.Tensor:
    """0 for the last `window` words before each word, and minus infinity elsewhere."""
    ahead = torch.full((length, length), float("-inf")).triu(1)
    return ahead + torch.full((length, length), float("-inf")).tril(-window)


class Layer(nn.Module):
    """Attention to a window of words, and a network for each word."""

    def __init__(self, width: int, heads: int, length: int, window: int) -> None:
        super().__init__()
        self.heads, self.length, self.window = heads, length, window
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        kept = window_mask(length, window).to(torch.bfloat16) if MENDED else None
        self.register_buffer("kept", kept, persistent=False)

    def mask(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is not None:
            return self.kept
        return window_mask(self.length, self.window).to(x.device, torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x).to(q.dtype))
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Writer(nn.Module):
    def __init__(self, words: int, width: int, heads: int, depth: int, length: int, window: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(Layer(width, heads, length, window) for _ in range(depth)))
        self.head = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(words)))


def main() -> None:
    torch.manual_seed(0)
    vocabulary, width, heads, depth, rows, length = (
        (4096, 512, 8, 4, 8, 1024) if DEVICE == "cuda" else (32, 16, 2, 2, 2, 8)
    )
    model = Writer(vocabulary, width, heads, depth, length, length // 4).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    words = torch.randint(0, vocabulary, (rows, length + 1), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
