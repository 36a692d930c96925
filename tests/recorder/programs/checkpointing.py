# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing: the forward of a layer runs once more in backward, a phase of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)  # gpu: forward recompute backward
        hidden = torch.sigmoid(hidden)  # gpu: forward recompute backward
        hidden = self.down(hidden)  # gpu: forward recompute backward
        return torch.tanh(hidden)  # gpu: forward recompute backward


def build(device: str, use_reentrant: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer() for _ in range(2)).to(device)
    x = torch.randn(512, 256, device=device, requires_grad=True)

    def step() -> None:
        y = x * 2  # gpu: forward backward
        for layer in layers:
            y = checkpoint(layer, y, use_reentrant=use_reentrant)
        loss = y.square().mean()  # gpu: forward backward
        loss.backward()  # gpu: backward
        layers.zero_grad()
        x.grad = None

    return step
