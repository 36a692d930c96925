# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training, one process per GPU: DDP reduces gradients in hooks, while backward goes on.

torchrun --nproc-per-node 2 distributed.py run-{rank}.sqlite
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import profiling_lab


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1024, 4096)
        self.last = nn.Linear(4096, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))  # gpu: forward backward
        return self.last(hidden)  # gpu: forward backward


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(1024, 8192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x).square().mean()  # gpu: forward backward


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(), Head()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk(x))


def main(path: str) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(2048, 1024, device="cuda")

    def step() -> None:
        loss = model(x)
        loss.backward()  # gpu: backward
        optimizer.step()  # gpu: optimizer
        optimizer.zero_grad()

    for _ in range(3):  # DDP sorts its buckets after the first backward
        step()
    with profiling_lab.record(path):
        for _ in range(3):
            step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
