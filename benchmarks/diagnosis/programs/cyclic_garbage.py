# SPDX-License-Identifier: Apache-2.0
"""Trees with parent links, dropped in every step, keep the garbage collector busy on a large heap."""

import gc
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (25, 5) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


ENTITIES, NEIGHBOURS, SEEDS, FANOUT = (40_000, 24, 192, (12, 6)) if DEVICE == "cuda" else (500, 8, 4, (3, 2))
WIDTH = 256 if DEVICE == "cuda" else 32


class Entity:
    def __init__(self, number: int) -> None:
        self.number = number
        self.neighbours: list[Entity] = []


class Visit:
    """A node of a sampled tree, which knows where it came from."""

    def __init__(self, entity: Entity, parent: "Visit | None") -> None:
        self.entity = entity
        self.parent = None if MENDED else parent  # a cycle: the parent has a list of its children
        self.children: list[Visit] = []

    def grow(self, turn: int, count: int) -> None:
        chosen = self.entity.neighbours[turn : turn + count]
        self.children = [Visit(neighbour, self) for neighbour in chosen]


def build_graph() -> list[Entity]:
    entities = [Entity(number) for number in range(ENTITIES)]
    edges = np.random.default_rng(0).integers(0, ENTITIES, (ENTITIES, NEIGHBOURS)).tolist()
    for entity, numbers in zip(entities, edges, strict=True):
        entity.neighbours = [entities[number] for number in numbers]
    return entities


def sample(entities: list[Entity], step: int) -> torch.Tensor:
    """The entities two hops around the seeds, one row for each seed and first neighbour."""
    roots = [Visit(entities[(step * SEEDS + number) % ENTITIES], None) for number in range(SEEDS)]
    for root in roots:
        root.grow(step % 8, FANOUT[0])
        for child in root.children:
            child.grow(step % 8, FANOUT[1])
    rows = [[visit.entity.number for visit in child.children] for root in roots for child in root.children]
    return torch.tensor(rows, pin_memory=DEVICE == "cuda").to(DEVICE, non_blocking=True)


def main() -> None:
    torch.manual_seed(0)
    entities = build_graph()
    table = nn.Embedding(ENTITIES, WIDTH).to(DEVICE)
    head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 16)).to(DEVICE)
    parameters = [*table.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=DEVICE == "cuda")
    label = torch.arange(SEEDS, device=DEVICE) % 16
    if MENDED:
        gc.collect()
        gc.freeze()
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        around = sample(entities, step)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(head(table(around).mean(1).view(SEEDS, -1, WIDTH).mean(1)), label)

        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
