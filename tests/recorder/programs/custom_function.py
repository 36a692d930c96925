# SPDX-License-Identifier: Apache-2.0
"""A torch.autograd.Function: its backward is user Python, charged to where its forward ran."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(x)  # gpu: forward backward
        ctx.save_for_backward(x, gate)
        return x * gate  # gpu: forward

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        x, gate = ctx.saved_tensors
        slope = gate * (1 + x * (1 - gate))  # executed
        return gradient * slope  # executed


def build(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    weight = torch.randn(512, 512, device=device, requires_grad=True)
    x = torch.randn(512, 512, device=device)

    def step() -> None:
        hidden = x @ weight  # gpu: forward backward
        active = Swish.apply(hidden)
        loss = active.square().sum()  # gpu: forward backward
        loss.backward()  # gpu: backward
        weight.grad = None

    return step
