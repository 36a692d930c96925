# SPDX-License-Identifier: Apache-2.0
"""A click model whose fields share one table on the GPU, looked up once for the whole batch."""

import sys
import time
from collections.abc import Iterator

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


class ClickModel(nn.Module):
    """A factorization machine with a deep and a wide part."""

    def __init__(self, fields: int, ids: int, width: int, hidden: int) -> None:
        super().__init__()
        self.vectors, self.weights = nn.Embedding(fields * ids, width), nn.Embedding(fields * ids, 1)
        self.register_buffer("first", torch.arange(fields) * ids)
        self.deep = nn.Sequential(
            nn.Linear(fields * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = ids + self.first
        vectors = self.vectors(places).to(torch.bfloat16)
        pairs = vectors.sum(dim=1).square() - vectors.square().sum(dim=1)
        wide = self.weights(places).sum(dim=1)[:, 0]
        return wide + 0.5 * pairs.sum(dim=-1) + self.deep(vectors.flatten(1))[:, 0]


def uploads(fields: int, ids: int, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches from pinned memory; the next one is copied on a stream of its own."""
    cuda = DEVICE == "cuda"
    seen = torch.randint(0, ids, (4, rows, fields), pin_memory=cuda)
    clicked = torch.rand(4, rows, pin_memory=cuda).lt(0.2).float()
    clicked = clicked.pin_memory() if cuda else clicked
    copies = torch.cuda.Stream() if cuda else None

    def upload(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(copies):
            return tuple(each[number % 4].to(DEVICE, non_blocking=True) for each in (seen, clicked))

    number, coming = 0, upload(0)
    while True:
        if copies is not None:
            torch.cuda.current_stream().wait_stream(copies)
            for each in coming:
                each.record_stream(torch.cuda.current_stream())
        batch, number = coming, number + 1
        coming = upload(number)
        yield batch


def main() -> None:
    torch.manual_seed(0)
    fields, ids, width, hidden, rows = (26, 20000, 64, 2048, 16384) if DEVICE == "cuda" else (3, 20, 4, 8, 8)
    model = ClickModel(fields, ids, width, hidden).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    data = uploads(fields, ids, rows)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        seen, clicked = next(data)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.binary_cross_entropy_with_logits(model(seen).float(), clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
