# SPDX-License-Identifier: Apache-2.0
"""Search that ranks its hits anew, whose texts come from a database with a query for each of them."""

import sqlite3
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
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


class Store:
    """Texts as tokens, in a file that other services read as well."""

    def __init__(self, path: Path, texts: np.ndarray) -> None:
        self.db = sqlite3.connect(path)
        self.db.execute("CREATE TABLE passages (id INTEGER PRIMARY KEY, tokens BLOB NOT NULL)")
        rows = ((number, text.tobytes()) for number, text in enumerate(texts))
        self.db.executemany("INSERT INTO passages VALUES (?, ?)", rows)
        self.db.commit()

    def passage(self, number: int) -> bytes:
        return self.db.execute("SELECT tokens FROM passages WHERE id = ?", (number,)).fetchone()[0]

    def several(self, numbers: list[int]) -> list[bytes]:
        marks = ",".join("?" * len(numbers))
        found = dict(self.db.execute(f"SELECT id, tokens FROM passages WHERE id IN ({marks})", numbers))
        return [found[number] for number in numbers]

    def texts(self, numbers: list[int]) -> torch.Tensor:
        blobs = self.several(numbers) if MENDED else [self.passage(number) for number in numbers]
        tokens = np.frombuffer(b"".join(blobs), dtype=np.int32).reshape(len(numbers), -1)
        return torch.from_numpy(tokens.copy()).to(DEVICE)


class Ranker(nn.Module):
    """Scores a text for a question: a layer of attention over its words and the question."""

    def __init__(self, words: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.table = heads, nn.Embedding(words, width)
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mix, self.head = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, question: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) + question[:, None]
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(x.mean(dim=1))[:, 0]


@torch.no_grad()
def answered(
    questions: torch.Tensor, index: torch.Tensor, store: Store, ranker: Ranker, hits: int
) -> torch.Tensor:
    """Scores of the best texts for each question."""
    numbers = (questions @ index.T).topk(hits, dim=1).indices
    tokens = store.texts(numbers.flatten().tolist())
    scores = ranker(questions.repeat_interleave(hits, dim=0), tokens)
    return scores.view(len(questions), hits).sort(dim=1, descending=True).values


def main() -> None:
    torch.manual_seed(0)
    texts, length, words, width, heads, asked, hits = (
        (50_000, 96, 30_000, 384, 6, 48, 100) if DEVICE == "cuda" else (60, 5, 50, 8, 2, 3, 4)
    )
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    index = F.normalize(torch.randn(texts, width, device=DEVICE), dim=1).to(dtype)
    ranker = Ranker(words, width, heads).to(DEVICE, dtype)
    questions = torch.randn(STEPS, asked, width, device=DEVICE, dtype=dtype)
    written = np.random.default_rng(0).integers(0, words, (texts, length), dtype=np.int32)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "passages.db", written)
        for step in range(STEPS):
            if step == WARM:
                began = start_clock()
            scores = answered(questions[step], index, store, ranker, hits)
        report(began, scores[:, :3].float().mean())
        store.db.close()


if __name__ == "__main__":
    main()
