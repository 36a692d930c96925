# SPDX-License-Identifier: Apache-2.0
"""A pipeline of stages, one a rank: microbatches go forward through all of them, then backward (GPipe)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shared.job import Job
from shared.models import Block

MICROBATCHES = 4


class Stage(nn.Module):
    """Some blocks of a transformer."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, width // 16) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Pipeline:
    def __init__(self, job: Job, stage: nn.Module, shape: tuple[int, ...]) -> None:
        self.job, self.stage, self.shape = job, stage, shape
        self.is_first, self.is_last = job.rank == 0, job.rank == job.world - 1

    def train(self, batches: list[Tensor]) -> None:
        """Gradients of all microbatches are added up."""
        inputs, outputs = [], []
        for number in range(MICROBATCHES):
            x = batches[number] if self.is_first else self._receive(self.job.rank - 1).requires_grad_()
            with torch.autocast(self.job.device.type, torch.bfloat16):
                y = self.stage(x)
            if self.is_last:
                y = y.float().square().mean()
            else:
                dist.send(y.detach(), self.job.rank + 1)
            inputs.append(x)
            outputs.append(y)
        for x, y in zip(inputs, outputs, strict=True):
            y.backward(None if self.is_last else self._receive(self.job.rank + 1))
            if not self.is_first:
                dist.send(x.grad, self.job.rank - 1)

    def _receive(self, rank: int) -> Tensor:
        x = torch.empty(self.shape, device=self.job.device)
        dist.recv(x, rank)
        return x
