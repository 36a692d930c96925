# SPDX-License-Identifier: Apache-2.0
"""A recommender of books is judged by the place of the book that each reader took next, among all books."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (64, 8) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Readers(nn.Module):
    """What a reader has read becomes a vector, near to those of books to read next."""

    def __init__(self, books: int, width: int, inner: int) -> None:
        super().__init__()
        self.books = nn.Embedding(books, width)
        self.layers = nn.Sequential(
            nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, width)
        )

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        return self.layers(F.embedding_bag(read, self.books.weight, mode="mean"))


class Places:
    """How far in front the right books are."""

    def __init__(self, cuts: tuple[int, ...]) -> None:
        self.cuts = torch.tensor(cuts, device=DEVICE)
        self.among = torch.zeros(len(cuts), dtype=torch.float64, device=DEVICE)
        self.inverse = torch.zeros((), dtype=torch.float64, device=DEVICE)
        self.readers = 0

    def place(self, scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The place of the right book of each row: 0 if no score is higher."""
        if MENDED:
            return (scores > scores.gather(1, right[:, None])).sum(dim=1)
        order = scores.argsort(dim=1, descending=True)
        return torch.where(order == right[:, None])[1]

    def add(self, scores: torch.Tensor, right: torch.Tensor) -> None:
        place = self.place(scores, right)
        self.among += (place[:, None] < self.cuts).sum(dim=0)
        self.inverse += (1 / (place.double() + 1)).sum()
        self.readers += len(right)

    def result(self) -> torch.Tensor:
        """The shares of readers whose book is among the first, and the mean of inverse places."""
        return torch.cat((self.among, self.inverse[None])) / self.readers


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, books, history, width, inner = (
        (1024, 250_000, 50, 128, 1024) if DEVICE == "cuda" else (6, 40, 5, 8, 16)
    )
    model = Readers(books, width, inner).to(DEVICE).eval()
    read = torch.randint(0, books, (STEPS, rows, history), dtype=torch.int32)
    right = torch.randint(0, books, (STEPS, rows))
    if DEVICE == "cuda":
        read, right = read.pin_memory(), right.pin_memory()
    places = Places((1, 10, 100, 1000, 10_000, 100_000) if DEVICE == "cuda" else (1, 10))
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        scores = model(read[step].to(DEVICE, non_blocking=True)) @ model.books.weight.t()
        places.add(scores, right[step].to(DEVICE, non_blocking=True))
    report(began, places.result().mean())


if __name__ == "__main__":
    main()
