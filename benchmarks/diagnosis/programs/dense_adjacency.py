# SPDX-License-Identifier: Apache-2.0
"""Papers are sorted into fields by a graph network over their citations."""

import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (30, 6) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


class Citations:
    """A graph with weights, so that neither papers with many citations nor those with few stand out."""

    def __init__(self, papers: int, each: int) -> None:
        self.papers = papers
        cited = torch.randint(0, papers, (papers * each,), device=DEVICE)
        citing = torch.arange(papers, device=DEVICE).repeat_interleave(each)
        alone = torch.arange(papers, device=DEVICE)
        self.source = torch.cat((cited, citing, alone))
        self.sink = torch.cat((citing, cited, alone))
        degree = torch.zeros(papers, device=DEVICE).index_add_(
            0, self.sink, torch.ones_like(self.sink).float()
        )
        self.weight = (degree[self.source] * degree[self.sink]).rsqrt()

    def dense(self) -> torch.Tensor:
        matrix = torch.zeros(self.papers, self.papers, device=DEVICE)
        return matrix.index_put_((self.sink, self.source), self.weight, accumulate=True)


class GraphConvolution(nn.Module):
    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(given, width))
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: torch.Tensor, graph: "Citations | torch.Tensor") -> torch.Tensor:
        support = x @ self.weight
        if isinstance(graph, Citations):
            said = support.index_select(0, graph.source) * graph.weight.unsqueeze(1)
            return torch.zeros_like(support).index_add(0, graph.sink, said) + self.bias
        return torch.mm(graph, support) + self.bias


class GCN(nn.Module):
    def __init__(self, given: int, width: int, classes: int, depth: int) -> None:
        super().__init__()
        sizes = (given, *[width] * (depth - 1), classes)
        self.layers = nn.ModuleList(GraphConvolution(*two) for two in pairwise(sizes))

    def forward(self, x: torch.Tensor, graph: "Citations | torch.Tensor") -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x, graph))
        return self.layers[-1](x, graph)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    papers, each, given, width, classes = (40960, 4, 512, 256, 40) if DEVICE == "cuda" else (30, 2, 8, 8, 3)
    citations = Citations(papers, each)
    graph = citations if MENDED else citations.dense()
    features = torch.randn(papers, given, device=DEVICE)
    fields = torch.randint(0, classes, (papers,), device=DEVICE)
    known = torch.randperm(papers, device=DEVICE)[: papers // 4]
    model = GCN(given, width, classes, 4).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, fused=DEVICE == "cuda")
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        scores = model(features, graph)
        loss = F.cross_entropy(scores.index_select(0, known), fields.index_select(0, known))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    report(began, loss)


if __name__ == "__main__":
    main()
