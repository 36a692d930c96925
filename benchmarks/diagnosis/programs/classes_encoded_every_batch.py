# SPDX-License-Identifier: Apache-2.0
"""Pictures are sorted into classes without training, by the texts that describe each class."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 4) if DEVICE == "cuda" else (3, 1)


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


class Texts(nn.Module):
    """The tower of texts: one vector for each prompt."""

    def __init__(self, words: int, length: int, width: int, depth: int, shared: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shared, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(tokens) + self.places)
        return self.head(self.norm(x[:, -1]))


class Pictures(nn.Module):
    """The tower of pictures."""

    def __init__(self, size: int, patch: int, width: int, depth: int, shared: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shared, bias=False)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.cut(pictures).flatten(2).transpose(1, 2) + self.places)
        return self.head(self.norm(x.mean(dim=1)))


class ZeroShot(nn.Module):
    """The class whose prompts are nearest to a picture. Each class has a prompt in each of a few wordings."""

    def __init__(self, pictures: Pictures, texts: Texts, prompts: torch.Tensor) -> None:
        super().__init__()
        self.pictures, self.texts = pictures, texts
        self.register_buffer("prompts", prompts)
        self.kept: torch.Tensor | None = None

    def describe(self) -> torch.Tensor:
        classes, wordings, _ = self.prompts.shape
        vectors = F.normalize(self.texts(self.prompts.flatten(0, 1)).float(), dim=-1)
        return F.normalize(vectors.unflatten(0, (classes, wordings)).mean(dim=1), dim=-1)

    def class_vectors(self) -> torch.Tensor:
        if not MENDED:
            return self.describe()
        if self.kept is None:
            self.kept = self.describe()
        return self.kept

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        seen = F.normalize(self.pictures(pictures).float(), dim=-1)
        return 100 * seen @ self.class_vectors().t()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, size, patch, width, narrow, depth, classes, length, vocabulary = (
        (128, 224, 16, 768, 512, 12, 1000, 24, 32000) if DEVICE == "cuda" else (4, 8, 4, 16, 8, 1, 5, 6, 40)
    )
    pictures = Pictures(size, patch, width, depth, narrow)
    texts = Texts(vocabulary, length, narrow, depth, narrow)
    prompts = torch.randint(0, vocabulary, (classes, 3, length))
    model = ZeroShot(pictures, texts, prompts).to(DEVICE, torch.bfloat16).eval()
    shots = torch.randint(0, 256, (4, rows, 3, size, size), dtype=torch.uint8)
    shots = shots.pin_memory() if DEVICE == "cuda" else shots
    chosen, sure = [], []
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        batch = shots[step % 4].to(DEVICE, non_blocking=True)
        best = model(batch.to(torch.bfloat16) / 127.5 - 1).softmax(dim=-1).max(dim=-1)
        chosen.append(best.indices)
        sure.append(best.values.mean())
    report(began, torch.stack(sure).mean())
    assert len(torch.cat(chosen)) == STEPS * rows


if __name__ == "__main__":
    main()
