# SPDX-License-Identifier: Apache-2.0
"""Questions are answered by the texts whose vectors point the same way."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (40, 8) if DEVICE == "cuda" else (3, 1)


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


class Questions(nn.Module):
    def __init__(self, words: int, longest: int, width: int, depth: int, shared: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shared)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.table(words) + self.places[: words.shape[1]])
        return self.head(self.norm(x).mean(dim=1)).float()


def unit(vectors: torch.Tensor) -> torch.Tensor:
    return F.normalize(vectors, dim=1)


def cos_sim(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """The cosine of the angle between each row of one and each row of the other."""
    return unit(one) @ unit(two).t()


class Index:
    """Vectors of all texts, as the encoder gave them, on the GPU."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self.vectors = unit(vectors) if MENDED else vectors

    def search(self, asked: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        if MENDED:
            scores = unit(asked) @ self.vectors.t()
        else:
            scores = cos_sim(asked, self.vectors)
        best = scores.topk(most, dim=1)
        return best.values, best.indices


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    texts, rows, length, vocabulary, width, depth, shared, most = (
        (2_400_000, 8, 32, 30522, 384, 6, 768, 10) if DEVICE == "cuda" else (40, 2, 5, 30, 16, 1, 8, 3)
    )
    model = Questions(vocabulary, length, width, depth, shared).to(DEVICE, torch.bfloat16).eval()
    index = Index(torch.randn(texts, shared, device=DEVICE))
    questions = torch.randint(0, vocabulary, (STEPS, rows, length))
    if DEVICE == "cuda":
        questions = questions.pin_memory()
    found = torch.zeros(STEPS, rows, most, dtype=torch.int64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        asked = model(questions[step].to(DEVICE, non_blocking=True))
        scores, found[step] = index.search(asked, most)
    report(began, scores.mean())
    assert int(found.max()) < texts


if __name__ == "__main__":
    main()
