# SPDX-License-Identifier: Apache-2.0
"""Processes run ring_attention, each on its part of a sequence: results and gradients must be the whole
call's. Run by test_ring_attention.py: ring_workers.py <processes>. Prints what was proven."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from profiling_lab.ops import ring_attention
from profiling_lab.ops._attention_in_torch import reference

ROWS, DIM, DIM_V = 12, 8, 6


def loss_of(out: Tensor, lse: Tensor, weights: list[Tensor]) -> Tensor:
    return (out * weights[0]).sum() + (lse * weights[1]).sum()


def prove(what: str, group: Any, kv_heads: int, dtype: torch.dtype, **options: Any) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    whole = [draw(2, ROWS, heads, dim) for heads, dim in ((4, DIM), (kv_heads, DIM), (kv_heads, DIM_V))]
    weights = [draw(2, ROWS, 4, DIM_V), draw(2, 4, ROWS)]
    mine = [t.chunk(size, 1)[rank].to(dtype).requires_grad_() for t in whole]
    out, lse = ring_attention(*mine, group, return_lse=True, **options)
    loss_of(out, lse, [weights[0].chunk(size, 1)[rank], weights[1].chunk(size, 2)[rank]]).backward()
    leaves = [t.to(dtype).double().requires_grad_() for t in whole]
    truth, true_lse = reference(*leaves, return_lse=True, **options)
    loss_of(truth, true_lse, weights).backward()
    near = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
    for found, expected, dim in (
        (out, truth, 1),
        (lse, true_lse, 2),
        *((t.grad, leaf.grad, 1) for t, leaf in zip(mine, leaves, strict=True)),
    ):
        torch.testing.assert_close(found.double(), expected.chunk(size, dim)[rank], **near)
    assert out.dtype == mine[0].grad.dtype == dtype
    dist.barrier(group)
    if dist.get_rank() == 0:
        print("proven", what, flush=True)


def work(rank: int, store: str, world: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    prove("full", None, 4, torch.float64)
    prove("causal", None, 4, torch.float64, causal=True)
    prove("grouped queries, scale, softcap", None, 2, torch.float64, causal=True, scale=0.7, softcap=2.0)
    prove("bfloat16", None, 1, torch.bfloat16, causal=True)
    halves = [dist.new_group(list(range(first, first + world // 2))) for first in (0, world // 2)]
    prove("a group of some", halves[rank >= world // 2], 2, torch.float64, causal=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        count = int(sys.argv[1])
        # A fork has imported torch already; no thread of it has started yet.
        mp.start_processes(work, args=(f"{folder}/store", count), nprocs=count, start_method="fork")
