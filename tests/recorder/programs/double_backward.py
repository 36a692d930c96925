# SPDX-License-Identifier: Apache-2.0
"""A gradient penalty: backward through backward, and both lead to the lines of the forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 512)
        self.last = nn.Linear(512, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)  # gpu: forward backward
        hidden = torch.tanh(hidden)  # gpu: forward backward
        return self.last(hidden)  # gpu: forward backward


def build(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    critic = Critic().to(device)
    x = torch.randn(512, 256, device=device, requires_grad=True)

    def step() -> None:
        score = critic(x).square().mean()  # gpu: forward backward
        (slope,) = torch.autograd.grad(score, x, create_graph=True)  # gpu: backward
        penalty = (slope.norm(dim=1) - 1).square().mean()  # gpu: forward backward
        loss = score + penalty  # gpu: forward
        loss.backward()  # gpu: backward
        critic.zero_grad()
        x.grad = None

    return step
