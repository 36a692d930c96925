# SPDX-License-Identifier: Apache-2.0
"""Train a network on one GPU or, with DistributedDataParallel, on several: the program to be profiled.

python train.py
torchrun --nproc-per-node 2 train.py --scaling strong weak
python train.py --device cpu
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Two layers around a residual."""

    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def nuclear_norms(weights, rounds=60):
    """The sum of the singular values of each weight: of its product with the orthogonal matrix next to it."""
    x = weights / torch.linalg.matrix_norm(weights, keepdim=True)
    for _ in range(rounds):
        x = torch.baddbmm(x, x @ x.mT, x, beta=1.5, alpha=-0.5)
    return (x * weights).sum(dim=(1, 2))


def as_wide(weight):
    """A weight, or its transpose, that has no more rows than columns."""
    weight = weight.detach()
    return weight if weight.shape[0] <= weight.shape[1] else weight.T


class Journal:
    """What is noted of every step."""

    def __init__(self, model):
        self.weights = [weight for weight in model.parameters() if weight.dim() == 2]
        self.mine = slice(number_of_this_rank(), None, number_of_ranks())
        self.pages = []

    def note(self):
        """Write down how large the weights of this rank's share are. All ranks have the same weights."""
        page = torch.zeros(len(self.weights), dtype=self.weights[0].dtype, device=self.weights[0].device)
        if share := self.weights[self.mine]:
            page[self.mine] = nuclear_norms(torch.stack([as_wide(weight) for weight in share]))
        self.pages.append(page)

    def read(self):
        """All that was noted since the last reading, by all ranks."""
        pages, self.pages = torch.cat(self.pages), []
        if dist.is_initialized():
            dist.all_reduce(pages)
        return pages.tolist()


class Job:
    """What is trained, and on what."""

    def __init__(self, model, x, target):
        self.model = model
        self.parallel = DistributedDataParallel(model) if dist.is_initialized() else model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.x, self.target = x, target
        self.journal = Journal(model)


def number_of_this_rank():
    return dist.get_rank() if dist.is_initialized() else 0


def number_of_ranks():
    return dist.get_world_size() if dist.is_initialized() else 1


def rows_of(small, scaling):
    """The rows of a step on all GPUs: the same on more of them (strong), or more with each (weak)."""
    rows = 24 if small else 98304
    return rows * number_of_ranks() if scaling == "weak" else rows


def build(device, small=False, seed=0, dtype=torch.float32, scaling="strong"):
    """A model, the same on every rank, and this rank's part of the data."""
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(seed)
    width, blocks = (12, 2) if small else (1024, 4)
    model = nn.Sequential(*(Block(width) for _ in range(blocks))).to(device, dtype)
    chance = torch.Generator(device).manual_seed(seed)
    size = (rows_of(small, scaling), width)
    x, target = (torch.randn(size, device=device, generator=chance).to(dtype) for _ in range(2))
    mine = slice(number_of_this_rank(), None, number_of_ranks())
    return Job(model, x[mine].clone(), target[mine].clone())


def train(job, steps):
    """So many steps. Returns on rank 0 the loss of each, over all ranks, and what the journal notes."""
    losses = []
    for _ in range(steps):
        loss = F.mse_loss(job.parallel(job.x), job.target)
        job.optimizer.zero_grad()
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
        job.journal.note()
    losses = torch.stack(losses)
    if dist.is_initialized():
        dist.all_reduce(losses)
    return [*(losses / number_of_ranks()).tolist(), *job.journal.read()]


def step_times(job, steps, repeats):
    """The milliseconds of a step, measured several times; each is the slowest rank's."""
    times = []
    for _ in range(repeats):
        if dist.is_initialized():
            dist.barrier()
        begin = time.perf_counter()
        train(job, steps)
        took = torch.tensor(1e3 * (time.perf_counter() - begin) / steps, device=job.x.device)
        if dist.is_initialized():
            dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(round(took.item(), 5))
    return times


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
    parser = argparse.ArgumentParser(description="Train a network on one GPU or several.")
    parser.add_argument("--scaling", nargs="+", choices=("strong", "weak"), default=["strong"])
    parser.add_argument("--steps", type=int, default=5, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=1, help="measurements")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--times", default="", help="write the times into this file")
    args = parser.parse_args()
    device, runs = start(args.device), []
    for scaling in args.scaling:
        small = device.type == "cpu"
        job = build(device, small, scaling=scaling)
        train(job, 3)
        times = step_times(job, args.steps, args.repeats)
        rows = rows_of(small, scaling)
        runs.append({"scaling": scaling, "gpus": number_of_ranks(), "rows": rows, "step_ms": times})
        if number_of_this_rank() == 0:
            print(f"{scaling}, {rows} rows on {number_of_ranks()}: {min(times):.2f} ms per step")
        del job
    if args.times and number_of_this_rank() == 0:
        with open(args.times, "w", encoding="utf-8") as file:
            json.dump(runs, file)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
