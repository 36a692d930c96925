# SPDX-License-Identifier: Apache-2.0
"""A simulation on meshes for which PyTorch keeps no memory, so that nvidia-smi shows what it needs."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

MENDED = "--mended" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, WARM = (14, 4) if DEVICE == "cuda" else (3, 1)


def start_clock() -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(began: float, loss: torch.Tensor) -> None:
    took_ms = 1000 * (start_clock() - began) / (STEPS - WARM)
    print(f"step_ms {took_ms:.3f} loss {loss.detach().float().item():.6f}")


def show_true_memory() -> None:
    """What is freed goes back to the driver, so that the numbers of nvidia-smi are those of the tensors."""
    if DEVICE == "cuda" and not MENDED:
        torch.cuda.memory.caching_allocator_enable(False)


def mlp(given: int, width: int) -> nn.Sequential:
    layers = (nn.Linear(given, width), nn.SiLU(), nn.Linear(width, width), nn.LayerNorm(width))
    return nn.Sequential(*layers)


class Exchange(nn.Module):
    """Edges learn from the nodes at their ends, then nodes from their edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge, self.node = mlp(3 * width, width), mlp(2 * width, width)

    def forward(
        self, nodes: torch.Tensor, edges: torch.Tensor, ends: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        source, sink = nodes.index_select(0, ends[0]), nodes.index_select(0, ends[1])
        edges = edges + self.edge(torch.cat((edges, source, sink), dim=1))
        heard = torch.zeros_like(nodes).index_add(0, ends[1], edges.to(nodes.dtype))
        return nodes + self.node(torch.cat((nodes, heard), dim=1)), edges


class Simulator(nn.Module):
    """The next velocities of a flow on a mesh, from those of now."""

    def __init__(self, given: int, width: int, depth: int) -> None:
        super().__init__()
        self.into_node, self.into_edge = mlp(given, width), mlp(3, width)
        self.layers = nn.ModuleList(Exchange(width) for _ in range(depth))
        self.out = nn.Linear(width, given)

    def forward(self, flow: torch.Tensor, places: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        way = places[ends[0]] - places[ends[1]]
        nodes = self.into_node(flow)
        edges = self.into_edge(torch.cat((way, way.norm(dim=1, keepdim=True)), dim=1))
        for layer in self.layers:
            nodes, edges = layer(nodes, edges, ends)
        return flow + self.out(nodes)


def mesh(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and the ends of edges, both ways, of a grid whose cells are cut to triangles."""
    number = torch.arange(side * side, device=DEVICE).view(side, side)
    pairs = ((number[:, 1:], number[:, :-1]), (number[1:], number[:-1]), (number[1:, 1:], number[:-1, :-1]))
    ends = torch.cat([torch.stack((a.flatten(), b.flatten())) for a, b in pairs], dim=1)
    places = torch.stack((number // side, number % side), dim=-1).view(-1, 2) / side
    return places + torch.randn_like(places) / (10 * side), torch.cat((ends, ends.flip(0)), dim=1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    side, width, depth = (192, 128, 3) if DEVICE == "cuda" else (5, 8, 2)
    model = Simulator(2, width, depth).to(DEVICE)
    show_true_memory()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    places, ends = mesh(side)
    flow = torch.randn(STEPS, side * side, 2, device=DEVICE)
    for step, now in enumerate(flow):
        if step == WARM:
            began = start_clock()
        loss = F.mse_loss(model(now, places, ends), now.roll(1, dims=0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    report(began, loss)


if __name__ == "__main__":
    main()
