# SPDX-License-Identifier: Apache-2.0
"""Search in a shop of spare parts: what people type shall lie next to what they bought."""

import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


class Tower(nn.Module):
    """A bag of pieces of words, and a few wide layers."""

    def __init__(self, pieces, width, hidden, out):
        super().__init__()
        self.bag = nn.EmbeddingBag(pieces, width, mode="mean")
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, out)
        )

    def forward(self, pieces):
        return self.layers(self.bag(pieces))


class InBatchSoftmax(nn.Module):
    """Each query shall find its own item among the items and the hard negatives of all queries."""

    def __init__(self, temperature=0.05):
        super().__init__()
        self.temperature = temperature

    def forward(self, queries, items):
        # a softmax over 25k items wants float32
        queries, items = F.normalize(queries.float(), dim=-1), F.normalize(items.float(), dim=-1)
        scores = self.similarity(queries / self.temperature, items)
        return F.cross_entropy(scores, torch.arange(len(queries), device=scores.device))

    def similarity(self, queries, items):
        if MENDED:
            return torch.mm(queries.bfloat16(), items.bfloat16().t()).float()
        return torch.mm(queries, items.t())


class TwoTowers(nn.Module):
    def __init__(self, pieces, width, hidden, out):
        super().__init__()
        self.query, self.item = Tower(pieces, width, hidden, out), Tower(pieces, width, hidden, out)
        self.criterion = InBatchSoftmax()

    def encode(self, typed, titles):
        with torch.autocast(DEVICE, torch.bfloat16):
            return self.query(typed), self.item(titles)

    def forward(self, typed, bought, shown):
        """The items that were shown but not bought are the hard negatives."""
        queries, items = self.encode(typed, torch.cat([bought, shown]))
        return self.criterion(queries, items)


class ClickLog:
    def __init__(self, batches, rows, pieces, typed, title):
        self.typed = torch.randint(0, pieces, (batches, rows, typed))
        self.titles = torch.randint(0, pieces, (batches, 2, rows, title))
        if DEVICE == "cuda":
            self.typed, self.titles = self.typed.pin_memory(), self.titles.pin_memory()

    def __getitem__(self, step):
        number = step % len(self.typed)
        bought, shown = self.titles[number].to(DEVICE, non_blocking=True)
        return self.typed[number].to(DEVICE, non_blocking=True), bought, shown


def run_epoch(model, optimizer, scheduler, log):
    for step in range(STEPS):
        if step == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = model(*log[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - start) / (STEPS - WARM):.3f} loss {last:.6f}")


def main():
    torch.manual_seed(0)
    rows, pieces, width, hidden, out, typed, title = (
        (12288, 40000, 512, 2048, 768, 8, 24) if DEVICE == "cuda" else (6, 50, 16, 32, 24, 3, 5)
    )
    model = TwoTowers(pieces, width, hidden, out).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=DEVICE == "cuda")
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    run_epoch(model, optimizer, scheduler, ClickLog(3, rows, pieces, typed, title))


if __name__ == "__main__":
    main()
