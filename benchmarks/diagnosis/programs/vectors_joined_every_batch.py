# SPDX-License-Identifier: Apache-2.0
"""Every word of an archive gets a vector, by which questions will be compared with texts later."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 10) if DEVICE == "cuda" else (3, 1)


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
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Words(nn.Module):
    """A vector of length one for each word of a text."""

    def __init__(self, words: int, longest: int, width: int, depth: int, shared: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shared)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(words) + self.places[: words.shape[1]])
        return F.normalize(self.head(self.norm(x)).float(), dim=-1)


class Archive:
    """Vectors of all words so far, text after text, in the memory of the host."""

    def __init__(self, texts: int, length: int, shared: int) -> None:
        self.texts = 0
        self.vectors = np.empty((texts if MENDED else 0, length, shared), np.float32)

    def add(self, vectors: torch.Tensor) -> None:
        new = vectors.cpu().numpy()
        if MENDED:
            self.vectors[self.texts : self.texts + len(new)] = new
        else:
            self.vectors = np.concatenate((self.vectors, new))
        self.texts += len(new)


class Texts:
    """Words of all texts as numbers of 16 bits."""

    def __init__(self, texts: int, length: int, vocabulary: int) -> None:
        self.words = torch.randint(0, vocabulary, (texts, length), dtype=torch.int16)
        if DEVICE == "cuda":
            self.words = self.words.pin_memory()

    def batch(self, first: int, rows: int) -> torch.Tensor:
        return self.words[first : first + rows].to(DEVICE, non_blocking=True).int()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width, depth, shared = (
        (256, 180, 30522, 768, 12, 128) if DEVICE == "cuda" else (3, 6, 50, 16, 1, 8)
    )
    model = Words(vocabulary, length, width, depth, shared).to(DEVICE, torch.bfloat16).eval()
    texts = Texts(STEPS * rows, length, vocabulary)
    archive = Archive(STEPS * rows, length, shared)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        archive.add(model(texts.batch(step * rows, rows)))
    report(began, torch.from_numpy(archive.vectors[:: rows // 2]).abs().mean())
    assert archive.texts == len(archive.vectors)


if __name__ == "__main__":
    main()
