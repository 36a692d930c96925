# SPDX-License-Identifier: Apache-2.0
"""Two processes train attention on the GPU under DDP, half a batch each: the gradients must be the whole
batch's. Run by test_attention_torch.py in a process of its own; on two GPUs over NCCL, on one over Gloo."""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from profiling_lab.ops.attention import FlashSelfAttention

WORLD = 2


def work(rank: int, store: str) -> None:
    two = torch.cuda.device_count() >= WORLD
    device = torch.device("cuda", rank if two else 0)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if two else "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD
    )
    torch.manual_seed(0)
    module = FlashSelfAttention(256, 4, 2, causal=True, deterministic=True, device=device)
    x = torch.randn(4, 300, 256, generator=torch.Generator().manual_seed(1)).to(device)

    def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(batch).float().square().mean()

    loss_of(module, x).backward()
    whole = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    # Small buckets: each is on its way while the backward of what lies before it still runs.
    parallel = DistributedDataParallel(module, bucket_cap_mb=1)
    for _ in range(3):
        module.zero_grad()
        loss_of(parallel, x.chunk(WORLD)[rank]).backward()
    for p, expected in zip(module.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=2e-2, atol=1e-4)
    if rank == 0:
        print("gradients equal the whole batch's", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(f"{folder}/store",), nprocs=WORLD)
