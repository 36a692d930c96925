# SPDX-License-Identifier: Apache-2.0
"""Two processes run flash_attention on DTensors: results and gradients must be the whole call's, and sharded.

Run by test_dtensor.py in a process of its own. Prints what was proven.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from profiling_lab.ops import flash_attention

WORLD = 2


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def run(inputs: list[Any], options: dict[str, Any]) -> tuple[Any, ...]:
    *qkv, sink = (None if t is None else t.detach().requires_grad_() for t in inputs)
    out, lse = flash_attention(*qkv, sink=sink, return_lse=True, **options)
    loss = out.square().sum() + lse.sum()
    loss.backward()
    return out, lse, *(t.grad for t in qkv), *([] if sink is None else [sink.grad])


def prove(what: str, mesh: Any, rank: int, place: Any, kv_heads: int, sink: bool, expected: Any) -> None:
    torch.manual_seed(0)
    whole: list[Tensor | None] = [draw(4, 6, 4, 8), draw(4, 6, kv_heads, 8), draw(4, 6, kv_heads, 5)]
    whole.append(draw(4) if sink else None)
    options = {"causal": True, "window": (3, 0), "softcap": 4.0}
    for_sink = Shard(0) if place == Shard(2) else Replicate()
    placements = [place, place, place, for_sink]
    parts = [
        None if t is None else distribute_tensor(t, mesh, [p]) for t, p in zip(whole, placements, strict=True)
    ]
    for ours, truth in zip(run(parts, options), run(whole, options), strict=True):
        assert isinstance(ours, DTensor)
        torch.testing.assert_close(ours.full_tensor(), truth)
    out = flash_attention(*parts[:3], **options)
    assert expected is None or out.placements == (expected,), out.placements
    if rank == 0:
        print("proven", what, flush=True)


def prove_packed(mesh: Any, rank: int) -> None:
    torch.manual_seed(0)
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    q, k, v = draw(9, 4, 8), draw(9, 2, 8), draw(9, 2, 5)
    truth = run([q, k, v, None], {"causal": True, "cu_seqlens_q": offsets, "cu_seqlens_k": offsets})
    everywhere = distribute_tensor(offsets, mesh, [Replicate()])
    options = {"causal": True, "cu_seqlens_q": everywhere, "cu_seqlens_k": everywhere}
    parts = [distribute_tensor(t, mesh, [Shard(1)]) for t in (q, k, v)]
    ours = run([*parts, None], options)
    for a, b in zip(ours, truth, strict=True):
        torch.testing.assert_close(a.full_tensor(), b)
    assert ours[0].placements == (Shard(1),)
    if rank == 0:
        print("proven packed", flush=True)


def work(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    for sink in (False, True):
        prove(f"batch {sink}", mesh, rank, Shard(0), 2, sink, Shard(0))
        prove(f"heads {sink}", mesh, rank, Shard(2), 2, sink, Shard(2))
        prove(f"whole {sink}", mesh, rank, Replicate(), 2, sink, Replicate())
        prove(f"rows, gathered {sink}", mesh, rank, Shard(1), 2, sink, None)
        prove(f"one key head for all {sink}", mesh, rank, Shard(2), 1, sink, None)
    prove_packed(mesh, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # A fork has imported torch already; no thread of it has started yet.
        mp.start_processes(work, args=(f"{folder}/store",), nprocs=WORLD, start_method="fork")
