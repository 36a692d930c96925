# SPDX-License-Identifier: Apache-2.0
"""What kind of thing is each node of a knowledge graph? Each kind of edge has a matrix of its own (R-GCN)."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (24, 6) if DEVICE == "cuda" else (3, 1)


class KnowledgeGraph:
    def __init__(self, nodes, edges, relations, kinds):
        self.nodes, self.relations = nodes, relations
        self.edge_index = torch.randint(0, nodes, (2, edges), device=DEVICE)
        # a few relations are frequent, most are rare
        self.edge_type = (relations * torch.rand(edges, device=DEVICE).square()).long()
        self.edge_weight = self.one_over_degree()
        self.y = torch.randint(0, kinds, (nodes,), device=DEVICE)
        self.train_nodes = torch.randperm(nodes, device=DEVICE)[: nodes // 5]

    def one_over_degree(self):
        """Of the node that an edge ends in, among edges of its relation."""
        group = self.edge_index[1] * self.relations + self.edge_type
        count = torch.zeros(self.nodes * self.relations, device=DEVICE)
        count.index_add_(0, group, torch.ones_like(group, dtype=torch.float32))
        return 1 / count[group]


class RGCNConv(nn.Module):
    def __init__(self, given, wanted, relations):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(relations, given, wanted) / given**0.5)
        self.root = nn.Linear(given, wanted)

    def forward(self, x, graph):
        out = self.root(x)
        if MENDED:
            return self.all_relations(out, x, graph)
        for relation in range(len(self.weight)):
            mask = graph.edge_type == relation
            messages = self.propagate(
                x, graph.edge_index[:, mask], graph.edge_weight[mask], self.weight[relation]
            )
            out = out.index_add(0, graph.edge_index[1, mask], messages)
        return out

    def propagate(self, x, edge_index, edge_weight, weight):
        return (x.index_select(0, edge_index[0]) @ weight) * edge_weight[:, None]

    def all_relations(self, out, x, graph):
        changed = torch.matmul(x, self.weight).flatten(0, 1)
        source = graph.edge_type * graph.nodes + graph.edge_index[0]
        messages = changed.index_select(0, source) * graph.edge_weight[:, None]
        return out.index_add(0, graph.edge_index[1], messages)


class EntityClassifier(nn.Module):
    """Nodes have nothing but a vector, which is learned too."""

    def __init__(self, graph, width, layers, kinds):
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(graph.nodes, width))
        self.convs = nn.ModuleList(RGCNConv(width, width, graph.relations) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.classify = nn.Linear(width, kinds)

    def encode(self, graph):
        x = self.vectors
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x, graph)))
        return x

    def forward(self, graph):
        return self.classify(self.encode(graph))


def train_epoch(model, optimizer, graph):
    model.train()
    logits = model(graph).index_select(0, graph.train_nodes)
    loss = F.cross_entropy(logits, graph.y.index_select(0, graph.train_nodes))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    nodes, edges, relations, kinds, width, layers = (
        (16000, 240000, 46, 11, 64, 3) if DEVICE == "cuda" else (12, 40, 3, 4, 8, 2)
    )
    graph = KnowledgeGraph(nodes, edges, relations, kinds)
    model = EntityClassifier(graph, width, layers, kinds).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=5e-4, fused=DEVICE == "cuda")
    for epoch in range(STEPS):
        if epoch == WARM:
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = train_epoch(model, optimizer, graph)
    last = loss.item()
    print(f"step_ms {1000 * (time.perf_counter() - start) / (STEPS - WARM):.3f} loss {last:.6f}")


if __name__ == "__main__":
    main()
