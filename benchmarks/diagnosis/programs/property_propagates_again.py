# SPDX-License-Identifier: Apache-2.0
"""A knowledge graph whose entities are a property, which spreads them over the graph at each use."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (16, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Spread(nn.Module):
    """Entities hear the entities that facts tie them to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.heard = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, ends: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        said = x.index_select(0, ends[0]) * share
        heard = torch.zeros_like(x).index_add(0, ends[1], said)
        return F.relu(self.own(x) + self.heard(heard))


class Knowledge(nn.Module):
    def __init__(self, entities: int, kinds: int, width: int, depth: int, facts: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(entities, width))
        self.kinds = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(Spread(width) for _ in range(depth))
        self.register_buffer("ends", facts[:, ::2].mT.contiguous())
        times = torch.bincount(self.ends[1], minlength=entities).clamp(min=1)
        self.register_buffer("share", 1.0 / times[self.ends[1]].float()[:, None])

    @property
    def entities(self) -> torch.Tensor:
        """The vectors of all entities, after they have heard each other."""
        x = self.table
        for layer in self.layers:
            x = layer(x, self.ends, self.share)
        return F.normalize(x, dim=1)

    def loss(self, facts: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        """True facts should be closer than those whose object was drawn, by a margin."""
        kind = self.kinds(facts[:, 1])
        if MENDED:
            entities = self.entities
            subject, thing, other = (entities.index_select(0, n) for n in (facts[:, 0], facts[:, 2], wrong))
        else:
            subject = self.entities.index_select(0, facts[:, 0])
            thing = self.entities.index_select(0, facts[:, 2])
            other = self.entities.index_select(0, wrong)
        near, far = (subject + kind - thing).norm(dim=1), (subject + kind - other).norm(dim=1)
        return F.relu(1.0 + near - far).mean()


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    entities, kinds, ties, rows, width, depth = (
        (60_000, 200, 600_000, 16384, 256, 2) if DEVICE == "cuda" else (30, 3, 90, 8, 8, 2)
    )
    ends = torch.randint(entities, (ties, 2), device=DEVICE)
    facts = torch.stack((ends[:, 0], torch.randint(kinds, (ties,), device=DEVICE), ends[:, 1]), dim=1)
    model = Knowledge(entities, kinds, width, depth, facts).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        seen = facts[torch.randint(ties, (rows,), device=DEVICE)]
        wrong = torch.randint(entities, (rows,), device=DEVICE)
        loss = model.loss(seen, wrong)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
