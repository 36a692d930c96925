# SPDX-License-Identifier: Apache-2.0
"""Decoding with grouped queries, where keys and values are repeated for every query head."""

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


def one_per_query(past: torch.Tensor, heads: int) -> torch.Tensor:
    """(rows, groups, length, size) to (rows, heads, length, size)"""
    return past.repeat_interleave(heads // past.shape[1], dim=1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if MENDED:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return F.scaled_dot_product_attention(q, *(one_per_query(past, q.shape[1]) for past in (k, v)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size, self.groups = width // heads, groups
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key_value = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor, past: torch.Tensor, at: int) -> torch.Tensor:
        """`past` has room for the keys and values of all tokens; `at` is the place of this one."""
        normal = self.norm1(x)
        past[:, :, :, at] = self.key_value(normal).unflatten(-1, (2, self.groups, self.size)).transpose(0, 1)
        q = self.query(normal).unflatten(-1, (-1, 1, self.size))
        k, v = past[:, :, :, : at + 1]
        x = x + self.out(attend(q, k, v).flatten(1))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, groups: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, token: torch.Tensor, pasts: list[torch.Tensor], at: int) -> torch.Tensor:
        x = self.table(token)
        for block, past in zip(self.blocks, pasts, strict=True):
            x = block(x, past, at)
        return self.head(x)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a new plan for every length
    words, width, heads, groups, layers = (32000, 4096, 32, 4, 6) if DEVICE == "cuda" else (50, 64, 8, 2, 2)
    rows, prompt = (8, 8192) if DEVICE == "cuda" else (2, 12)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    with torch.device(DEVICE):
        model = Decoder(words, width, heads, groups, layers).to(dtype)
        token = torch.randint(0, words, (rows,))
        room = (2, rows, groups, prompt + STEPS, width // heads)
        pasts = [torch.randn(room, dtype=dtype) for _ in range(layers)]
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        logits = model(token, pasts, prompt + step)
        token = logits.argmax(dim=-1)
    report(began, F.cross_entropy(logits.float(), token))


if __name__ == "__main__":
    main()
