# SPDX-License-Identifier: Apache-2.0
"""One operator a line, of the kinds that autograd treats differently."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

ROWS, WIDTH = 512, 256


def build(device: str, multithreading: bool = True) -> Callable[[], None]:
    torch.manual_seed(0)
    linear = nn.Linear(WIDTH, WIDTH).to(device)
    bias = torch.randn(WIDTH, device=device, requires_grad=True)
    scale = torch.rand(1, WIDTH, device=device, requires_grad=True)
    x = torch.randn(ROWS, WIDTH, device=device, requires_grad=True)
    some = torch.arange(0, ROWS, 3, device=device)
    ones = torch.ones(len(some), WIDTH, device=device)

    def step() -> None:
        y = x * 2  # gpu: forward backward
        y = y + bias  # gpu: forward backward
        y = linear(y)  # gpu: forward backward
        y = y * scale.expand(ROWS, -1)  # gpu: forward backward
        y = y.clone()  # gpu: forward
        y[:, 0].mul_(3)  # gpu: forward backward
        y[some] = ones  # gpu: forward backward
        with torch.no_grad():
            largest = y.abs().amax()  # gpu: forward
        y = y / largest  # gpu: forward backward
        parts = torch.cat((y.sin(), y.cos()))  # gpu: forward backward
        y = parts.relu_()  # gpu: forward backward
        y = torch.where(y > 0.5, y, y * y)  # gpu: forward backward
        y = y.index_select(0, some)  # gpu: forward backward
        y = y.softmax(-1)  # gpu: forward backward
        loss = y.square().sum()  # gpu: forward backward
        with torch.autograd.set_multithreading_enabled(multithreading):
            loss.backward()  # gpu: backward
        linear.zero_grad()
        x.grad = bias.grad = scale.grad = None

    return step
