# SPDX-License-Identifier: Apache-2.0
"""Experts that exchange tokens by all-to-all: most tokens go to the expert of rank 1."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from shared.job import Job, Step, run
from torch import Tensor, nn

BUSY_SHARE = 0.8
"""of the tokens, what goes to rank 1"""


class Exchange(torch.autograd.Function):
    """Rows go to other ranks, and their gradients come back."""

    @staticmethod
    def forward(context: Any, x: Tensor, send: list[int], receive: list[int]) -> Tensor:
        context.counts = send, receive
        got = x.new_empty(sum(receive), x.shape[1])
        dist.all_to_all_single(got, x.contiguous(), receive, send)
        return got

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        send, receive = context.counts
        return Exchange.apply(gradients[0], receive, send), None, None


class Experts(nn.Module):
    """The expert of this rank; counts says how many tokens each rank sends to each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def expert(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))  # planted: delay

    def forward(self, x: Tensor, counts: list[int], rank: int) -> Tensor:
        receive = [counts[rank]] * len(counts)
        mine = Exchange.apply(self.norm(x), counts, receive)
        return x + Exchange.apply(self.expert(mine).to(x.dtype), receive, counts)


def build(job: Job) -> Step:
    torch.manual_seed(job.rank)
    width, tokens, layers = job.pick((2048, 16384, 3), (32, 16, 2))
    with job.device:
        model = nn.ModuleList(Experts(width) for _ in range(layers))
        x = torch.randn(tokens, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    even = [tokens // job.world] * job.world
    busy = int(BUSY_SHARE * tokens)
    uneven = [busy if rank == 1 else (tokens - busy) // (job.world - 1) for rank in range(job.world)]
    uneven[0] += tokens - sum(uneven)

    def step() -> None:
        counts = uneven if job.planted() else even
        y = x
        with torch.autocast(job.device.type, torch.bfloat16):
            for layer in model:
                y = layer(y, counts, job.rank)
        y.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
