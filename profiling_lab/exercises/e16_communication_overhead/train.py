# SPDX-License-Identifier: Apache-2.0
"""Train a wide network on several GPUs with DistributedDataParallel: the program to be profiled.

torchrun --nproc-per-node 2 train.py
torchrun --nproc-per-node 2 train.py --bucket-mb 64
torchrun --nproc-per-node 2 train.py --device cpu
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 2048  # links carry large messages at their full bandwidth


class Network(nn.Module):
    """Layers of the same width."""

    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, target, bucket_mb):
        self.model = model
        self.parallel = model
        if dist.is_initialized():
            self.parallel = DistributedDataParallel(
                model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
            )
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.x, self.target = x, target


def build(device, small=False, seed=0, dtype=torch.float32, bucket_mb=BUCKET_MB):
    """A model, the same on every rank, and data of this rank's own."""
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(seed)
    width, layers, rows = (16, 3, 8) if small else (4096, 12, 1792)
    model = Network(width, layers).to(device, dtype)
    rank = dist.get_rank() if dist.is_initialized() else 0
    chance = torch.Generator(device).manual_seed(seed + rank)
    x, target = (torch.randn(rows, width, device=device, generator=chance).to(dtype) for _ in range(2))
    return Job(model, x, target, bucket_mb)


def train(job, steps):
    """So many steps. Returns the loss of each, over all ranks."""
    losses = []
    for _ in range(steps):
        loss = F.mse_loss(job.parallel(job.x), job.target)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    if dist.is_initialized():
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
    return losses.tolist()


def start(device):
    """Join the other ranks, if a launcher started them. Returns this rank's device."""
    on_gpu = device == "cuda"
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(own)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=own if on_gpu else None)
    return own


def main():
    parser = argparse.ArgumentParser(description="Train a wide network on several GPUs.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--bucket-mb", type=int, default=BUCKET_MB, help="of gradients reduced together")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = start(args.device)
    job = build(device, small=device.type == "cpu", bucket_mb=args.bucket_mb)
    train(job, 3)
    begin = time.perf_counter()
    losses = train(job, args.steps)
    took_ms = 1e3 * (time.perf_counter() - begin) / args.steps
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"loss {losses[-1]:.4f}, {took_ms:.2f} ms per step, buckets of {args.bucket_mb} MB")
    if dist.is_initialized():
        del job  # DDP holds the process group
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
