# SPDX-License-Identifier: Apache-2.0
"""Passages that a search has found are put in order by a model that reads each with the question."""

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


class CrossEncoder(nn.Module):
    """Reads a question and a passage together, and says how well the passage answers."""

    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.table, self.kinds = nn.Embedding(words, width), nn.Embedding(2, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, words: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        x = self.table(words) + self.kinds(kinds) + self.places[: words.shape[1]]
        return self.head(self.norm(self.blocks(x)[:, 0])).squeeze(-1).float().sigmoid()


class Archive:
    """Passages of equal length, as numbers of words, and a vector for each."""

    def __init__(self, passages: int, length: int, words: int, width: int) -> None:
        self.words = torch.randint(0, words, (passages, length), device=DEVICE)
        self.vectors = F.normalize(torch.randn(passages, width, device=DEVICE), dim=1).half()

    def find(self, vector: torch.Tensor, most: int) -> torch.Tensor:
        """The words of the passages that are nearest."""
        picked = (self.vectors @ vector.to(self.vectors.dtype)).topk(most).indices
        return self.words.index_select(0, picked)


class Reranker:
    def __init__(self, model: nn.Module, asked: int, length: int) -> None:
        self.model = model
        self.kinds = (torch.arange(asked + length, device=DEVICE) >= asked).long()

    def score(self, question: torch.Tensor, passages: torch.Tensor) -> torch.Tensor:
        if MENDED:
            pairs = torch.cat((question.expand(len(passages), -1), passages), dim=1)
            return self.model(pairs, self.kinds.expand_as(pairs)).cpu()
        scores = []
        for passage in passages:
            pair = torch.cat((question, passage)).unsqueeze(0)
            scores.append(self.model(pair, self.kinds.unsqueeze(0)).item())
        return torch.tensor(scores)

    def best(self, question: torch.Tensor, passages: torch.Tensor, most: int) -> list[tuple[int, float]]:
        """Numbers of the passages that answer best, and how well."""
        scores, picked = self.score(question, passages).topk(most)
        return list(zip(picked.tolist(), scores.tolist(), strict=True))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    found, asked, length, vocabulary, width, depth, size = (
        (64, 32, 192, 30522, 768, 12, 100_000) if DEVICE == "cuda" else (4, 2, 5, 30, 16, 1, 20)
    )
    model = CrossEncoder(vocabulary, asked + length, width, depth).to(DEVICE, torch.bfloat16).eval()
    archive = Archive(size, length, vocabulary, width)
    reranker = Reranker(model, asked, length)
    questions = torch.randint(0, vocabulary, (STEPS, asked), device=DEVICE)
    vectors = torch.randn(STEPS, width, device=DEVICE)
    answers = []
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        passages = archive.find(vectors[step], found)
        answers.append(reranker.best(questions[step], passages, 3))
    report(began, torch.tensor([[score for _, score in best] for best in answers]).mean())


if __name__ == "__main__":
    main()
