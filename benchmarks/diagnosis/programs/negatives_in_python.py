# SPDX-License-Identifier: Apache-2.0
"""A recommender draws the items that a user did not buy in Python, one at a time."""

import random
import sys
import time

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


class Sampler:
    """Items that a user did not buy, a few for each one that he bought."""

    def __init__(self, bought: list[set[int]], items: int, negatives: int) -> None:
        self.bought, self.items, self.negatives = bought, items, negatives
        self.random = random.Random(0)

    def draw(self, users: list[int]) -> torch.Tensor:
        if MENDED:  # of many items, one that was bought is drawn hardly ever
            return torch.randint(0, self.items, (len(users), self.negatives), device=DEVICE)
        rows = []
        for user in users:
            row: list[int] = []
            while len(row) < self.negatives:
                item = self.random.randrange(self.items)
                if item not in self.bought[user] and item not in row:
                    row.append(item)
            rows.append(row)
        return torch.tensor(rows).to(DEVICE)


class TwoTowers(nn.Module):
    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_net, self.item_net = self.tower(width), self.tower(width)

    @staticmethod
    def tower(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 8 * width), nn.ReLU(), nn.Linear(8 * width, width))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """How well each item of a row suits the row's user."""
        who, what = self.user_net(self.users(users)), self.item_net(self.items(items))
        return (what * who[:, None]).sum(dim=-1)


def main() -> None:
    torch.manual_seed(0)
    users, items, width, rows, negatives = (
        (20000, 10000, 128, 1024, 10) if DEVICE == "cuda" else (8, 50, 8, 4, 2)
    )
    chooser = random.Random(1)
    bought = [{chooser.randrange(items) for _ in range(20)} for _ in range(users)]
    sampler = Sampler(bought, items, negatives)
    model = TwoTowers(users, items, width).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    batches = [[chooser.randrange(users) for _ in range(rows)] for _ in range(4)]
    buyers = torch.tensor(batches, device=DEVICE)
    chosen = torch.tensor([[min(bought[user]) for user in batch] for batch in batches], device=DEVICE)
    target = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        batch = step % 4
        offered = torch.cat((chosen[batch][:, None], sampler.draw(batches[batch])), dim=1)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(buyers[batch], offered).float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
