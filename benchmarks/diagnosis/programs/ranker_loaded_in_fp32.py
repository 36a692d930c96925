# SPDX-License-Identifier: Apache-2.0
"""A search engine lets a large network read its best hits together with the question, and ranks them anew."""

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


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.intermediate, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = self.norm1(x + self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.output(F.gelu(self.intermediate(x))))


class CrossEncoder(nn.Module):
    """Reads a question and a passage, and says how well one answers the other."""

    def __init__(self, words: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        self.layers = nn.Sequential(*(EncoderLayer(width, max(1, width // 64)) for _ in range(depth)))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, words: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(words) + self.places.weight[: words.shape[1]] + self.kinds(kinds))
        return self.classifier(torch.tanh(self.pooler(self.layers(x)[:, 0])))[:, 0].float()


def checkpoint(config: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """The weights as they are published: in bf16."""
    return {name: value.to(torch.bfloat16) for name, value in CrossEncoder(*config).state_dict().items()}


def load(config: tuple[int, ...], weights: dict[str, torch.Tensor]) -> CrossEncoder:
    with torch.device("meta"):
        model = CrossEncoder(*config)
    model = model.to_empty(device=DEVICE)
    if MENDED:
        model = model.to(torch.bfloat16)
    model.load_state_dict(weights)
    return model.eval()


class Passages:
    """What the first stage of the search found: rows of words, all cut to one length."""

    def __init__(self, texts: int, words: int, length: int) -> None:
        self.words = torch.randint(0, words, (texts, length))

    def hits(self, number: int, most: int) -> torch.Tensor:
        return self.words[(torch.arange(most) * 31 + number * 17) % len(self.words)]


class Ranker:
    def __init__(self, model: CrossEncoder, rows: int) -> None:
        self.model, self.rows = model, rows

    def pairs(self, question: torch.Tensor, passages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.cat((question.expand(len(passages), -1), passages), dim=1)
        if DEVICE == "cuda":
            words = words.pin_memory()
        kinds = (torch.arange(words.shape[1], device=DEVICE) >= len(question)).long()
        return words.to(DEVICE, non_blocking=True), kinds

    def score(self, words: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.model(some, kinds) for some in words.split(self.rows)])

    def __call__(self, question: torch.Tensor, passages: torch.Tensor, most: int) -> torch.Tensor:
        """The best passages with their scores, on the host."""
        return torch.stack(self.score(*self.pairs(question, passages)).topk(most)).cpu()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    texts, hits, rows, asked, length, words, width, depth, most = (
        (4000, 96, 48, 24, 168, 30522, 768, 12, 10) if DEVICE == "cuda" else (20, 6, 3, 3, 5, 30, 16, 1, 2)
    )
    config = (words, asked + length, width, depth)
    rank = Ranker(load(config, checkpoint(config)), rows)
    passages, questions = Passages(texts, words, length), torch.randint(0, words, (STEPS, asked))
    total = torch.zeros(())
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        scores, _ = rank(questions[step], passages.hits(step, hits), most)
        total += scores.mean()
    report(began, total / STEPS)


if __name__ == "__main__":
    main()
