# SPDX-License-Identifier: Apache-2.0
"""A click model that looks up each id once: it asks for the distinct ids of every field in every step."""

import sys
import time
from collections.abc import Iterator

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


class Pretrained(nn.Module):
    """Vectors for the ids of one field, which are not trained."""

    def __init__(self, ids: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(ids, width) * 0.1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if MENDED:
            return F.embedding(ids, self.table)
        distinct, places = torch.unique(ids, return_inverse=True)
        return F.embedding(places, F.embedding(distinct, self.table))


class ClickModel(nn.Module):
    """Products of all pairs of fields, as in DLRM, and a network on top."""

    def __init__(self, fields: int, ids: int, width: int, hidden: int) -> None:
        super().__init__()
        self.fields = nn.ModuleList(Pretrained(ids, width) for _ in range(fields))
        self.scale = nn.Parameter(torch.ones(fields, width))
        self.top = nn.Sequential(
            nn.Linear(fields * (fields + width), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        looked_up = [field(column).sum(dim=1) for field, column in zip(self.fields, ids, strict=True)]
        vectors = torch.stack(looked_up, dim=1) * self.scale
        pairs = vectors @ vectors.mT
        return self.top(torch.cat((pairs.flatten(1), vectors.flatten(1)), dim=-1))[:, 0]


def impressions(fields: int, ids: int, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Three ids a field and example, popular ones more often."""
    seen = (torch.rand(4, fields, rows, 3, device=DEVICE) ** 3 * ids).long()
    clicked = (torch.rand(4, rows, device=DEVICE) < 0.2).float()
    while True:
        yield from zip(seen, clicked, strict=True)


def main() -> None:
    torch.manual_seed(0)
    fields, ids, width, hidden, rows = (32, 20000, 64, 1024, 8192) if DEVICE == "cuda" else (3, 20, 4, 16, 8)
    model = ClickModel(fields, ids, width, hidden).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    data = impressions(fields, ids, rows)
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
