# SPDX-License-Identifier: Apache-2.0
"""Accounts of swindlers are found by a graph network over who has sent money to whom."""

import sys
import time
from dataclasses import dataclass, fields
from itertools import pairwise

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


@dataclass
class Graph:
    """What is known of each account, the payments between them, and which accounts are bad."""

    features: torch.Tensor
    sender: torch.Tensor
    receiver: torch.Tensor
    bad: torch.Tensor
    known: torch.Tensor

    def to(self, device: str) -> "Graph":
        parts = [getattr(self, field.name) for field in fields(self)]
        return Graph(*(part.to(device) for part in parts))


def payments(accounts: int, each: int, given: int) -> Graph:
    return Graph(
        torch.randn(accounts, given),
        torch.arange(accounts).repeat_interleave(each),
        torch.randint(0, accounts, (accounts * each,)),
        (torch.rand(accounts) < 0.05).float(),
        torch.randperm(accounts)[: accounts // 3],
    )


class Neighbours(nn.Module):
    """An account's own vector, and the mean of those that paid it."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(given, width), nn.Linear(given, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, graph: Graph, share: torch.Tensor) -> torch.Tensor:
        said = self.others(x).index_select(0, graph.sender)
        heard = torch.zeros(len(x), said.shape[1], device=said.device, dtype=said.dtype)
        heard = heard.index_add(0, graph.receiver, said)
        return F.relu(self.norm(self.own(x) + heard * share))


class Detector(nn.Module):
    def __init__(self, given: int, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Neighbours(*two) for two in pairwise((given, *[width] * depth)))
        self.head = nn.Linear(width, 1)

    def forward(self, graph: Graph) -> torch.Tensor:
        x = graph.features
        paid = torch.zeros(len(x), device=x.device).index_add_(
            0, graph.receiver, torch.ones_like(graph.receiver).float()
        )
        share = 1 / paid.clamp(min=1)[:, None]
        for layer in self.layers:
            x = layer(x, graph, share)
        return self.head(x)[:, 0]


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=DEVICE == "cuda")

    def epoch(self, graph: Graph) -> torch.Tensor:
        """All accounts at once, so that an epoch is a step."""
        graph = graph.to(DEVICE)
        scores = self.model(graph).index_select(0, graph.known)
        loss = F.binary_cross_entropy_with_logits(scores, graph.bad.index_select(0, graph.known))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    accounts, each, given, width = (200_000, 6, 512, 128) if DEVICE == "cuda" else (30, 2, 8, 8)
    trainer = Trainer(Detector(given, width, depth=2).to(DEVICE))
    graph = payments(accounts, each, given)
    if MENDED:
        graph = graph.to(DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = trainer.epoch(graph)
    report(began, loss)


if __name__ == "__main__":
    main()
