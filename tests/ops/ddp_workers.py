# SPDX-License-Identifier: Apache-2.0
"""Two processes run every op's module under DDP, half a batch each: the gradients must be the whole batch's.

Run by test_contract.py in a process of its own. Prints what was proven; gloo may print too.
"""

from __future__ import annotations

import tempfile
from importlib import import_module

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from profiling_lab.ops import OPS

WORLD = 2


def prove(slug: str, rank: int) -> None:
    torch.manual_seed(0)
    module = import_module(f"profiling_lab.ops.{slug}").CASE.module(24).double()
    x = torch.randn(8, 5, 24, dtype=torch.float64)
    module(x).square().mean().backward()
    whole = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    parallel = DistributedDataParallel(module)
    parallel(x.chunk(WORLD)[rank]).square().mean().backward()
    for p, expected in zip(module.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, expected)


def work(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    for slug in OPS:
        prove(slug, rank)
        if rank == 0:
            print("proven", slug, flush=True)
    # No reducer is left, and no process destroys the group while the other still reads from it.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # A fork has imported torch already; no thread of it has started yet.
        mp.start_processes(work, args=(f"{folder}/store",), nprocs=WORLD, start_method="fork")
