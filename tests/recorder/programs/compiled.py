# SPDX-License-Identifier: Apache-2.0
"""A model under torch.compile: kernels of generated code have the lines that they were generated from.

Replayed as a CUDA graph (mode="reduce-overhead"), all of them belong to the function that was compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # as a graph: forward backward
        hidden = self.up(x)  # gpu: forward backward
        hidden = torch.nn.functional.gelu(hidden)  # gpu: forward backward
        hidden = self.down(hidden)  # gpu: forward backward
        return hidden.square().mean()  # gpu: forward backward


def build(device: str, mode: str = "default") -> Callable[[], None]:
    torch.manual_seed(0)
    model = torch.compile(Mlp().to(device), mode=mode)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(512, 256, device=device, requires_grad=True)

    def step() -> None:
        loss = model(x)
        loss.backward()  # gpu: backward
        optimizer.step()  # gpu: optimizer
        optimizer.zero_grad()
        x.grad = None

    return step
