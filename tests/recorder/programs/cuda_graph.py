# SPDX-License-Identifier: Apache-2.0
"""A training step captured by hand into a CUDA graph: all of a replay belongs to the line that replays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def build(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, batch = torch.randn(512, 256, device=device), torch.randn(512, 256)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()

    def step() -> None:
        x.copy_(batch)  # gpu: forward
        graph.replay()  # gpu: forward

    return step
