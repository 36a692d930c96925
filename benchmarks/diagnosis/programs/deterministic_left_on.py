# SPDX-License-Identifier: Apache-2.0
"""A graph network that still asks for deterministic algorithms: its sums over edges sort them each time."""

import os
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


os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def prepare(seed: int, reproducible: bool) -> None:
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(reproducible)


class Graph:
    """Nodes and directed edges; a few nodes have very many."""

    def __init__(self, nodes: int, edges: int) -> None:
        self.nodes = nodes
        ends = (torch.rand(2, edges) ** 2.5 * nodes).long()
        self.source, self.target = ends.to(DEVICE)
        degree = torch.bincount(ends[1], minlength=nodes).clamp(min=1)
        self.share = (1.0 / degree)[:, None].to(DEVICE)


class Convolution(nn.Module):
    """Each node takes the mean of what its neighbours say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.say, self.own = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, graph: Graph) -> torch.Tensor:
        said = self.say(x).index_select(0, graph.source)
        heard = torch.zeros_like(x).index_add(0, graph.target, said)
        return x + F.relu(self.own(x) + heard * graph.share)


class GraphNetwork(nn.Module):
    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(Convolution(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, graph: Graph) -> torch.Tensor:
        for convolution in self.convolutions:
            x = convolution(x, graph)
        return self.head(x)


def main() -> None:
    prepare(seed=0, reproducible=not MENDED)
    nodes, edges, width = (100_000, 600_000, 128) if DEVICE == "cuda" else (20, 60, 8)
    graph = Graph(nodes, edges)
    model = GraphNetwork(width, 3, 16).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    x = torch.randn(nodes, width, device=DEVICE)
    labels = torch.randint(0, 16, (nodes,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = F.cross_entropy(model(x, graph), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
