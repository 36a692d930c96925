# SPDX-License-Identifier: Apache-2.0
"""Offers for many visitors: a quick score chooses a hundred of all, a network puts these in order."""

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


class Wishes(nn.Module):
    """A vector for each visitor, from what they looked at last."""

    def __init__(self, offers: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(offers, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        x = self.table(seen).mean(dim=1)
        return x + self.down(F.relu(self.up(x)))


class Judge(nn.Module):
    """How well an offer suits a visitor, looked at more closely."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.into, self.mix, self.head = (
            nn.Linear(3 * width, inner),
            nn.Linear(inner, inner),
            nn.Linear(inner, 1),
        )

    def forward(self, wishes: torch.Tensor, offers: torch.Tensor) -> torch.Tensor:
        wishes = wishes.unsqueeze(1).expand_as(offers)
        x = F.relu(self.into(torch.cat((wishes, offers, wishes * offers), dim=2)))
        return self.head(F.relu(self.mix(x)))[..., 0].float().sigmoid()


class Order:
    """Numbers of offers with their scores, the best first."""

    def __init__(self, numbers: torch.Tensor, scores: torch.Tensor) -> None:
        self.numbers, self.scores = numbers, scores

    @classmethod
    def of(cls, scores: torch.Tensor) -> "Order":
        numbers = torch.argsort(scores, dim=1, descending=True)
        return cls(numbers, scores)

    def first(self, most: int) -> "Order":
        best = self.numbers[:, :most]
        return Order(best, self.scores.gather(1, best))


class Stock:
    """All offers, and which of them are not to be had today."""

    def __init__(self, offers: int, width: int) -> None:
        self.vectors = torch.randn(offers, width, device=DEVICE)
        self.missing = torch.where(torch.rand(offers, device=DEVICE) < 0.1, -torch.inf, 0.0)

    def candidates(self, wishes: torch.Tensor, seen: torch.Tensor, most: int) -> Order:
        scores = torch.addmm(self.missing, wishes.float(), self.vectors.t())
        scores.scatter_(1, seen, -torch.inf)
        if MENDED:
            best = scores.topk(most, dim=1)
            return Order(best.indices, best.values)
        return Order.of(scores).first(most)


class Page:
    def __init__(self, stock: Stock, wishes: Wishes, judge: Judge) -> None:
        self.stock, self.wishes, self.judge = stock, wishes, judge

    def fill(self, seen: torch.Tensor, most: int, shown: int) -> Order:
        wishes = self.wishes(seen)
        likely = self.stock.candidates(wishes, seen, most)
        vectors = self.stock.vectors[likely.numbers].to(wishes.dtype)
        judged = Order.of(self.judge(wishes, vectors) + 1e-3 * likely.scores).first(shown)
        return Order(likely.numbers.gather(1, judged.numbers), judged.scores)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    offers, visitors, length, width, inner, most, shown = (
        (500_000, 256, 50, 128, 1024, 100, 20) if DEVICE == "cuda" else (60, 3, 4, 8, 16, 6, 3)
    )
    wishes = Wishes(offers, width).to(DEVICE, torch.bfloat16).eval()
    judge = Judge(width, inner).to(DEVICE, torch.bfloat16).eval()
    page = Page(Stock(offers, width), wishes, judge)
    seen = torch.randint(0, offers, (4, visitors, length), device=DEVICE)
    scores = torch.zeros(STEPS, device=DEVICE)
    shelf = torch.zeros(STEPS, visitors, shown, dtype=torch.int64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        order = page.fill(seen[step % 4], most, shown)
        scores[step], shelf[step] = order.scores.mean(), order.numbers
    report(began, scores.mean())
    assert int(shelf.max()) < offers


if __name__ == "__main__":
    main()
