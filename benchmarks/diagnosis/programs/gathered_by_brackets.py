# SPDX-License-Identifier: Apache-2.0
"""A graph network that picks the rows of its edges with square brackets."""

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


def rows_of(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, numbers) if MENDED else x[numbers]


class Convolution(nn.Module):
    """Mean over the senders of a node, of what each of them says to it."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.own, self.sent = nn.Linear(given, width), nn.Linear(given, width, bias=False)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        said = rows_of(self.sent(x), edges[0]) * share
        return self.own(x).index_add(0, edges[1], said)


class Papers(nn.Module):
    """The field of each paper from its words and the papers that it cites."""

    def __init__(self, given: int, width: int, fields: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Convolution(width if n else given, width) for n in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, fields)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x, edges, share)))
        return self.head(x)


def citations(nodes: int, count: int) -> torch.Tensor:
    """Edges from papers, of which some are cited much more than others, to any papers."""
    cited = (torch.rand(count, device=DEVICE).square() * nodes).long().clamp(max=nodes - 1)
    return torch.stack((cited, torch.randint(0, nodes, (count,), device=DEVICE)))


def main() -> None:
    torch.manual_seed(0)
    nodes, count, given, width, fields, depth = (
        (150_000, 2_000_000, 128, 64, 40, 3) if DEVICE == "cuda" else (20, 60, 8, 8, 4, 2)
    )
    model = Papers(given, width, fields, depth).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=DEVICE == "cuda")
    edges = citations(nodes, count)
    received = torch.zeros(nodes, device=DEVICE).index_add_(0, edges[1], torch.ones(count, device=DEVICE))
    share = received.reciprocal().index_select(0, edges[1])[:, None]
    words, field = torch.randn(nodes, given, device=DEVICE), torch.randint(0, fields, (nodes,), device=DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        loss = F.cross_entropy(model(words, edges, share), field)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
