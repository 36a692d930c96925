# SPDX-License-Identifier: Apache-2.0
"""A transformer of plain torch, and the usual ways to divide it among processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shared.job import Job


class Attention(nn.Module):
    """One projection each for q, k and v, so that tensor parallel can divide them by heads."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q, self.k, self.v))
        q, k, v = (each.transpose(1, 2) for each in heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, head_dim)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.up(self.norm2(x)))
        return x + self.down(hidden)


class Transformer(nn.Module):
    """forward gives the loss of the next token."""

    def __init__(self, vocabulary: int, width: int, head_dim: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, head_dim) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def transformer(job: Job, width: int = 2048, blocks: int = 4, vocabulary: int = 8192) -> Transformer:
    """The same weights on every rank."""
    torch.manual_seed(0)
    with job.device:
        if not job.on_gpu:
            return Transformer(64, 32, 8, 2)
        return Transformer(vocabulary, width, 128 if width >= 1024 else 64, blocks)


def random_tokens(
    job: Job, batch: int = 8, length: int = 1024, vocabulary: int = 8192, seed: int | None = None
) -> Tensor:
    """Others on every rank, unless there is a seed. On the CPU few and short ones."""
    torch.manual_seed(1 + job.rank if seed is None else seed)
    if not job.on_gpu:
        batch, length, vocabulary = max(1, batch // 4), max(4, length // 64), 64
    return torch.randint(vocabulary, (batch, length + 1), device=job.device)


def data_parallel(model: nn.Module, job: Job, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, device_ids=[job.device] if job.on_gpu else None, **options)


def tensor_parallel(model: Transformer, job: Job) -> Transformer:
    """Attention by heads, and the hidden layer by columns and rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(job.device.type, (job.world,))
    columns = ("attention.q", "attention.k", "attention.v", "up")
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in ("attention.out", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model
