# SPDX-License-Identifier: Apache-2.0
"""Embeddings of users and items spread over a graph whose matrix is made once, in CSR form."""

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


class Spread(nn.Module):
    """The mean of the embeddings after each round (LightGCN)."""

    def __init__(self, nodes: int, width: int, edges: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.table = nn.Parameter(0.1 * torch.randn(nodes, width))
        ends = torch.randint(0, nodes, (2, edges))
        weights = torch.full((edges,), nodes / edges)
        both = torch.cat((ends, ends.flip(0)), dim=1)
        matrix = torch.sparse_coo_tensor(both, weights.repeat(2), (nodes, nodes))
        self.matrix = matrix.to(DEVICE).coalesce().to_sparse_csr()

    def forward(self) -> torch.Tensor:
        seen = [self.table]
        for _ in range(self.rounds):
            seen.append(self.matrix @ seen[-1])
        return torch.stack(seen).mean(dim=0)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    nodes, width, edges, rounds, users = (
        (100_000, 128, 2_000_000, 3, 1024) if DEVICE == "cuda" else (20, 8, 40, 2, 4)
    )
    model = Spread(nodes, width, edges, rounds).to(DEVICE)
    for step in range(STEPS):
        if step == WARM:
            began = start_clock()
        found = model().to(torch.bfloat16)
        scores = found[:users] @ found.mT
        best = scores.amax(dim=-1)
    report(began, best.float().mean())


if __name__ == "__main__":
    main()
