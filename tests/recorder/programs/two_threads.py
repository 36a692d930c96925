# SPDX-License-Identifier: Apache-2.0
"""Two threads train, each with numbers of its own for its autograd nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


def build(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    x = torch.randn(512, 512, device=device)
    weights = [torch.randn(512, 512, device=device, requires_grad=True) for _ in range(2)]

    def few(weight: torch.Tensor) -> torch.Tensor:
        return (x @ weight).sin()  # gpu: forward backward

    def many(weight: torch.Tensor) -> torch.Tensor:
        y = x @ weight  # gpu: forward backward
        for _ in range(4):
            y = y.cos()  # gpu: forward backward
        return y

    def train(model: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor) -> None:
        for _ in range(5):
            loss = model(weight).square().sum()  # gpu: forward backward
            loss.backward()  # gpu: backward
            weight.grad = None

    def step() -> None:
        work = zip((few, many), weights, strict=True)
        threads = [threading.Thread(target=train, args=arguments) for arguments in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return step
