# SPDX-License-Identifier: Apache-2.0
"""Two processes on two GPUs, over NCCL: the ops on DTensors, in ring_attention, under FSDP2 and tensor
parallel must give what they give on one GPU.

Run by test_two_gpus.py in processes of its own. Prints what was proven. gpu_workers.py cpu: over gloo.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sharded_workers import ROWS, Model, tensor_parallel
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from profiling_lab.ops import flash_attention, ladder_attention, ring_attention

WORLD, WIDTH = 2, 256
# A kernel may take other tiles for half of the rows, and TF32 rounds what it sums in another order.
NEAR = {torch.float32: {"rtol": 2e-3, "atol": 2e-3}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


def draw(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(device, dtype)


def run(function: Callable[..., Any], inputs: list[Tensor]) -> tuple[list[Any], int]:
    """Results and gradients, and how often the processes communicated in the forward."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    with CommDebugMode() as communication:
        results = function(*leaves)
    results = list(results) if isinstance(results, tuple) else [results]
    sum(r.float().square().mean() for r in results).backward()
    return [*results, *(t.grad for t in leaves)], communication.get_total_counts()


def compare(
    what: str, function: Callable[..., Any], whole: list[Tensor], places: list[Any], mesh: Any
) -> int:
    parts = [distribute_tensor(t, mesh, [place]) for t, place in zip(whole, places, strict=True)]
    found, sent = run(function, parts)
    expected, _ = run(function, whole)
    for ours, truth in zip(found, expected, strict=True):
        assert isinstance(ours, DTensor), what
        torch.testing.assert_close(
            ours.full_tensor(), truth, **NEAR[truth.dtype], msg=lambda text: f"{what}: {text}"
        )
    told(what)
    return sent


def told(what: str) -> None:
    if dist.get_rank() == 0:
        print("proven", what, flush=True)


def prove_rows(mesh: Any, device: str) -> None:
    for name, (op, _, rows, others) in ROWS.items():
        whole = [draw(device, 4, 128, WIDTH) for _ in range(rows)]
        whole += [draw(device, *(WIDTH for _ in other)) / (16 if len(other) == 2 else 1) for other in others]
        for dim in (0, 1):
            places = [Shard(dim)] * rows + [Replicate()] * len(others)
            assert compare(f"{name}, dimension {dim}", op, whole, places, mesh) == 0, name


def prove_attention(mesh: Any, device: str) -> None:
    whole = [draw(device, 4, 192, heads, 64, dtype=torch.bfloat16) for heads in (4, 2, 2)]

    def causal(*qkv: Tensor) -> Any:
        return flash_attention(*qkv, causal=True, return_lse=True)

    for what, place in (("batch", Shard(0)), ("heads", Shard(2)), ("rows, gathered", Shard(1))):
        sent = compare(f"flash_attention, {what}", causal, whole, [place] * 3, mesh)
        assert (sent == 0) == (place != Shard(1)), what
    equal = [draw(device, 4, 128, 4, 64) for _ in "qkv"]
    compare("ladder_attention, heads", ladder_attention, equal, [Shard(2)] * 3, mesh)


def prove_ring(device: str) -> None:
    rank = dist.get_rank()
    for what, options in (("full", {}), ("causal", {"causal": True}), ("softcap", {"softcap": 4.0})):
        whole = [draw(device, 2, 512, heads, 64, dtype=torch.bfloat16) for heads in (4, 2, 2)]
        mine = [t.chunk(WORLD, 1)[rank].detach().requires_grad_() for t in whole]
        leaves = [t.detach().requires_grad_() for t in whole]
        out, truth = ring_attention(*mine, **options), flash_attention(*leaves, **options)
        for each in (out, truth):
            each.float().square().sum().backward()
        pairs = [(out, truth), *((t.grad, leaf.grad) for t, leaf in zip(mine, leaves, strict=True))]
        for ours, expected in pairs:
            torch.testing.assert_close(ours, expected.chunk(WORLD, 1)[rank], rtol=3e-2, atol=3e-2)
        told(f"ring_attention, {what}")


def prove_model(mesh: Any, name: str, device: str) -> None:
    """Gradients that are wrong show in the parameters."""
    torch.manual_seed(0)
    model, truth = (Model(WIDTH, 64).to(device) for _ in range(2))
    truth.load_state_dict(model.state_dict())
    parts = 1
    if name == "tensor parallel":
        tensor_parallel(model, mesh)
    else:
        parts = WORLD
        for module in (model.attention, model.norm, model.heavy, model):
            fully_shard(module, mesh=mesh)
    batch = draw(device, 8, 128, WIDTH)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, truth)]
    for _ in range(3):
        losses = []
        with torch.autocast(device, torch.bfloat16):
            losses.append(model(batch.chunk(parts)[dist.get_rank() % parts]).float().square().mean())
            losses.append(truth(batch).float().square().mean())
        for optimizer, loss in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for (key, found), expected in zip(model.named_parameters(), truth.parameters(), strict=True):
        whole = found.full_tensor() if isinstance(found, DTensor) else found
        torch.testing.assert_close(
            whole, expected, rtol=1e-2, atol=1e-3, msg=lambda text, key=key: f"{name}, {key}: {text}"
        )
    told(name)


def work(rank: int, store: str, device: str) -> None:
    backend = "gloo" if device == "cpu" else "nccl"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh(device, (WORLD,))
    prove_rows(mesh, device)
    prove_attention(mesh, device)
    prove_ring(device)
    for name in ("FSDP2", "tensor parallel"):
        prove_model(mesh, name, device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        # A fork has imported torch already; no thread of it has started yet, and CUDA has not.
        arguments = (f"{folder}/store", (sys.argv[1:] or ["cuda"])[0])
        mp.start_processes(work, args=arguments, nprocs=WORLD, start_method="fork")
