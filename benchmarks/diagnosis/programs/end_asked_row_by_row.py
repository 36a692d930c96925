# SPDX-License-Identifier: Apache-2.0
"""A help desk answers many customers at once: each answer goes on until one of the words that end it."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (12, 3) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Block(nn.Module):
    """Its keys and values stay in a room as long as the longest answer."""

    def __init__(self, width: int, rows: int, longest: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("room", torch.zeros(2, rows, self.heads, longest, width // self.heads))

    def forward(self, x: torch.Tensor, start: int) -> torch.Tensor:
        end = start + x.shape[1]
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        self.room[0, :, :, start:end], self.room[1, :, :, start:end] = k, v
        keys, values = self.room[:, :, :, :end]
        seen = F.scaled_dot_product_attention(q, keys, values, is_causal=x.shape[1] > 1)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Writer(nn.Module):
    def __init__(self, words: int, width: int, depth: int, rows: int, longest: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.blocks = nn.ModuleList(Block(width, rows, longest) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor, start: int) -> torch.Tensor:
        """Scores of what comes after the last of the words."""
        x = self.table(words) + self.places[start : start + words.shape[1]]
        for block in self.blocks:
            x = block(x, start)
        return self.head(self.norm(x[:, -1]))


class AllHaveEnded:
    """True when each answer has had a word that ends it."""

    def __init__(self, ends: tuple[int, ...], rows: int) -> None:
        self.ends = ends
        self.words = torch.tensor(ends, device=DEVICE)
        self.known = torch.zeros(rows, dtype=torch.bool, device=DEVICE)
        self.ended = [False] * rows

    def __call__(self, said: torch.Tensor) -> bool:
        if MENDED:
            self.known |= torch.isin(said[:, -1], self.words)
            return bool(self.known.all())
        for row in range(len(said)):
            if not self.ended[row]:
                self.ended[row] = int(said[row, -1]) in self.ends
        return all(self.ended)


class Longest:
    def __init__(self, words: int) -> None:
        self.words = words

    def __call__(self, said: torch.Tensor) -> bool:
        return said.shape[1] >= self.words


class HelpDesk:
    def __init__(self, writer: Writer, ends: tuple[int, ...], most: int) -> None:
        self.writer, self.ends, self.most = writer, ends, most

    def answer(self, questions: torch.Tensor) -> torch.Tensor:
        rows, start = questions.shape
        rules = [Longest(self.most), AllHaveEnded(self.ends, rows)]
        said = torch.empty(rows, self.most, dtype=torch.int64, device=DEVICE)
        scores, count = self.writer(questions, 0), 0
        while True:
            said[:, count] = scores.argmax(dim=-1)
            count += 1
            if any(rule(said[:, :count]) for rule in rules):
                return said[:, :count]
            scores = self.writer(said[:, count - 1 : count], start + count - 1)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    rows, length, most, vocabulary, width, depth = (
        (96, 64, 40, 32000, 1024, 8) if DEVICE == "cuda" else (3, 4, 5, 40, 16, 1)
    )
    writer = Writer(vocabulary, width, depth, rows, length + most).to(DEVICE, torch.bfloat16).eval()
    desk = HelpDesk(writer, (vocabulary - 1, vocabulary - 2), most)
    questions = torch.randint(0, vocabulary, (4, rows, length), device=DEVICE)
    total = torch.zeros((), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        total += desk.answer(questions[step % 4]).float().mean()
    report(began, total / STEPS)


if __name__ == "__main__":
    main()
