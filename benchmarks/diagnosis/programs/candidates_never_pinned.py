# SPDX-License-Identifier: Apache-2.0
"""Orders what a shop could show: a list of candidates for each visit, with a vector of the text of each."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)

Batch = dict[str, torch.Tensor]


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class VisitShards:
    """What a job of the night has written: each shard has some thousand visits, which lie in memory."""

    def __init__(self, shards: int, visits: int, candidates: int, text: int, shelf: int) -> None:
        self.shards = [self.load(visits, candidates, text, shelf) for _ in range(shards)]

    def load(self, visits: int, candidates: int, text: int, shelf: int) -> Batch:
        shard = {
            "text": torch.randn(visits, candidates, text, dtype=torch.float16, device=DEVICE).cpu(),
            "shelf": torch.randint(0, shelf, (visits, candidates), dtype=torch.int32),
            "price": torch.rand(visits, candidates),
            "clicked": torch.randint(0, candidates, (visits,)),
        }
        if MENDED and DEVICE == "cuda":
            return {name: part.pin_memory() for name, part in shard.items()}
        return shard

    def batches(self, rows: int) -> Iterator[Batch]:
        """Without end."""
        while True:
            for shard in self.shards:
                for first in range(0, len(shard["clicked"]), rows):
                    yield {name: part[first : first + rows] for name, part in shard.items()}


class Mixer(nn.Module):
    """Candidates look at one another."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ListRanker(nn.Module):
    def __init__(self, text: int, shelf: int, width: int, depth: int) -> None:
        super().__init__()
        self.text, self.price = nn.Linear(text, width), nn.Linear(1, width)
        self.shelf = nn.Embedding(shelf, width)
        self.mixers = nn.Sequential(*(Mixer(width, max(1, width // 64)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        x = self.text(batch["text"]) + self.price(batch["price"][..., None]) + self.shelf(batch["shelf"])
        return self.head(self.norm(self.mixers(x)))[..., 0]


def move(batch: Batch) -> Batch:
    return {name: part.to(DEVICE, non_blocking=True) for name, part in batch.items()}


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")

    def compute_loss(self, batch: Batch) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = self.model(batch)
        return F.cross_entropy(scores.float(), batch["clicked"])

    def training_step(self, batch: Batch) -> torch.Tensor:
        loss = self.compute_loss(move(batch))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    rows, candidates, text, shelf, width, depth = (
        (1024, 160, 768, 5000, 192, 1) if DEVICE == "cuda" else (2, 5, 12, 9, 16, 1)
    )
    data = VisitShards(2, 2 * rows, candidates, text, shelf)
    trainer = Trainer(ListRanker(text, shelf, width, depth).to(DEVICE))
    for step, batch in zip(range(STEPS), data.batches(rows), strict=False):
        if step == WARM:
            began = start_clock()
        loss = trainer.training_step(batch)
    report(began, loss)


if __name__ == "__main__":
    main()
