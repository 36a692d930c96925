# SPDX-License-Identifier: Apache-2.0
"""A batch of questions is answered word by word; every answer goes on until it says that it is finished."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (48, 12) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


END = 2


class Cache:
    """Keys and values of all words so far, of one layer."""

    def __init__(self, rows: int, heads: int, longest: int, size: int) -> None:
        self.pairs = torch.zeros(2, rows, heads, longest, size, device=DEVICE, dtype=torch.bfloat16)

    def add(self, pair: torch.Tensor, place: int) -> torch.Tensor:
        """All pairs up to the new ones."""
        self.pairs[:, :, :, place : place + pair.shape[3]] = pair
        return self.pairs[:, :, :, : place + pair.shape[3]]


class Layer(nn.Module):
    """Four heads of queries share one of keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.shared = heads, max(1, heads // 4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * self.shared * (width // heads))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, cache: Cache, place: int) -> torch.Tensor:
        y = self.norm1(x)
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = cache.add(self.kv(y).unflatten(-1, (2, self.shared, -1)).permute(2, 0, 3, 1, 4), place)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Assistant(nn.Module):
    def __init__(self, words: int, longest: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor, caches: list[Cache], place: int) -> torch.Tensor:
        """The likeliest next word of each row."""
        x = self.table(words) + self.places.weight[place : place + words.shape[1]]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, place)
        return self.head(self.norm(x[:, -1])).argmax(dim=-1)


class Answers:
    """What was said in each row, up to its end."""

    def __init__(self, rows: int) -> None:
        self.said: list[list[int]] = [[] for _ in range(rows)]
        self.finished = [False] * rows

    def add(self, words: torch.Tensor) -> None:
        for row, word in enumerate(words.tolist() if MENDED else words):
            if self.finished[row]:
                continue
            if word == END:
                self.finished[row] = True
            else:
                self.said[row].append(int(word))

    def all_finished(self) -> bool:
        return all(self.finished)


class Generator:
    def __init__(self, model: Assistant, rows: int, heads: int, longest: int, size: int) -> None:
        self.model = model
        self.caches = [Cache(rows, heads, longest, size) for _ in model.layers]

    def read(self, questions: torch.Tensor) -> None:
        self.answers, self.place = Answers(len(questions)), questions.shape[1]
        self.words = self.model(questions, self.caches, 0)

    def step(self) -> bool:
        """One more word in each row. False when all rows are finished."""
        self.answers.add(self.words)
        self.words = self.model(self.words[:, None], self.caches, self.place)
        self.place += 1
        return not self.answers.all_finished()


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, asked, words, width, heads, depth = (
        (256, 192, 32000, 1024, 16, 8) if DEVICE == "cuda" else (3, 5, 60, 16, 4, 1)
    )
    longest = asked + STEPS
    model = Assistant(words, longest, width, heads, depth).to(DEVICE, torch.bfloat16).eval()
    generator = Generator(model, rows, model.layers[0].shared, longest, width // heads)
    questions = torch.randint(3, words, (rows, asked)).to(DEVICE)
    generator.read(questions)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        if not generator.step():
            break
    report(began, torch.tensor([float(sum(said)) for said in generator.answers.said]).mean() / words)


if __name__ == "__main__":
    main()
