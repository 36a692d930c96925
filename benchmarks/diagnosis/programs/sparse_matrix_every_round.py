# SPDX-License-Identifier: Apache-2.0
"""Scores spread over a graph whose sparse matrix is made and sorted anew for each round."""

import sys
import time

import torch
from torch import nn

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


class Graph:
    def __init__(self, nodes: int, edges: int) -> None:
        self.nodes = nodes
        self.edges = torch.randint(0, nodes, (2, edges), device=DEVICE)
        degree = torch.bincount(self.edges[0], minlength=nodes).clamp(min=1)
        self.weights = 1.0 / degree[self.edges[0]].float()
        self.sorted = self.coalesced().to_sparse_csr()

    def coalesced(self) -> torch.Tensor:
        return torch.sparse_coo_tensor(self.edges, self.weights, (self.nodes, self.nodes)).coalesce()

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of a node's neighbours."""
        return (self.sorted if MENDED else self.coalesced()) @ x


class Predict(nn.Module):
    """A perceptron for each node, whose predictions spread over the graph (APPNP)."""

    def __init__(self, features: int, width: int, classes: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.layers = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, graph: Graph, features: torch.Tensor) -> torch.Tensor:
        own = self.layers(features)
        y = own
        for _ in range(self.rounds):
            y = 0.9 * graph.spread(y) + 0.1 * own
        return y


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    nodes, edges, features, width, classes, rounds = (
        (200_000, 3_000_000, 256, 256, 64, 10) if DEVICE == "cuda" else (20, 60, 8, 8, 4, 2)
    )
    graph = Graph(nodes, edges)
    model = Predict(features, width, classes, rounds).to(DEVICE)
    known = torch.randn(nodes, features, device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        scores = model(graph, known)
    report(began, scores.softmax(dim=-1).amax(dim=-1).mean())


if __name__ == "__main__":
    main()
