# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training: every process has all the weights, and a part of the batch.

torchrun --nproc-per-node 2 ddp_training.py --steps 4
torchrun --nproc-per-node 2 ddp_training.py --device cpu
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """A norm and two layers, added to the input."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        hidden = F.relu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Network(nn.Module):
    """Blocks for all tokens, then wider ones for the mean of every four."""

    def __init__(self, width, early, late, classes=64):
        super().__init__()
        self.early = nn.Sequential(*(Block(width) for _ in range(early)))
        self.widen = nn.Linear(width, 2 * width)
        self.late = nn.Sequential(*(Block(2 * width) for _ in range(late)))
        self.scores = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.early(x).unflatten(1, (-1, 4)).mean(2)
        return self.scores(self.late(self.widen(x)).mean(1))


def data_parallel(model):
    """The model, whose gradients are averaged over all processes. One large message has the latency once."""
    return DistributedDataParallel(model, bucket_cap_mb=4096)


class Job:
    """What is trained, and this process's part of the data."""

    def __init__(self, model, x, labels):
        self.model = data_parallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.x, self.labels = x, labels


def build(device, small=False, seed=0, dtype=torch.float32):
    """The same weights in every process, other data in each."""
    width, early, late, rows, tokens = (8, 2, 2, 4, 8) if small else (1024, 2, 4, 8, 1024)
    torch.manual_seed(seed)
    with torch.device(device):
        model = Network(width, early, late)
        torch.manual_seed(seed + 1 + dist.get_rank())
        x, labels = torch.randn(rows, tokens, width), torch.randint(64, (rows,))
    return Job(model.to(dtype), x.to(dtype), labels)


def train(job, steps):
    """So many steps. Returns the loss of each, on this process's data."""
    losses = []
    for _ in range(steps):
        job.optimizer.zero_grad()
        with torch.autocast(job.x.device.type, torch.bfloat16, enabled=job.x.is_cuda):
            loss = F.cross_entropy(job.model(job.x), job.labels)
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main():
    parser = argparse.ArgumentParser(description="Train a network on several GPUs.")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it as torchrun --nproc-per-node 2 ddp_training.py")
    device = args.device
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    job = build(device, small=device == "cpu")
    train(job, 2)
    begin = time.perf_counter()
    losses = train(job, args.steps)
    took_ms = 1e3 * (time.perf_counter() - begin) / args.steps
    if dist.get_rank() == 0:
        print(f"loss {losses[-1]:.4f}, {took_ms:.2f} ms per step")
    del job  # DDP holds the process group
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
