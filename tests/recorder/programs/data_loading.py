# SPDX-License-Identifier: Apache-2.0
"""Batches from a DataLoader with worker processes and pinned memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((256,), index / 256), index % 10


def build(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Linear(256, 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=True)

    def step() -> None:
        for batch, classes in loader:
            x = batch.to(device, non_blocking=True)  # gpu: forward
            y = classes.to(device, non_blocking=True)  # gpu: forward
            logits = model(x)  # gpu: forward backward
            loss = nn.functional.cross_entropy(logits, y)  # gpu: forward backward
            loss.backward()  # gpu: backward
            optimizer.step()  # gpu: optimizer
            optimizer.zero_grad()

    return step
