# SPDX-License-Identifier: Apache-2.0
"""Gradients of several batches are added up: that is work for the line that uses the parameter."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def build(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Linear(512, 512, bias=False).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = torch.randn(4, 1024, 512, device=device)

    def step() -> None:
        for x in batches:
            loss = model(x).square().mean()  # gpu: forward backward
            loss.backward()  # gpu: backward
        optimizer.step()  # gpu: optimizer
        optimizer.zero_grad()

    return step
