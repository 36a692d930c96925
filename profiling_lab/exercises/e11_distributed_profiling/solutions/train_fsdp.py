# SPDX-License-Identifier: Apache-2.0
"""Train a network with FSDP2: every process has a part of the weights, and documents of its own.

torchrun --nproc-per-node 2 train_fsdp.py --steps 3
"""

import argparse
import gc
import os
import random
import string
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

WARM = 2  # steps
LETTERS = string.ascii_letters + string.digits + " .,:;-"
NUMBERS = {letter: number for number, letter in enumerate(LETTERS, 1)}
POSTS, BOOKS = 700, 100_000  # letters of a document


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
    """Guesses the letter after each letter; gives the loss."""

    def __init__(self, width, blocks):
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS) + 1, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.scores = nn.Linear(width, len(LETTERS) + 1)

    def forward(self, letters):
        scores = self.scores(self.blocks(self.embedding(letters[:, :-1])))
        return F.cross_entropy(scores.flatten(0, 1), letters[:, 1:].flatten())


def sharded(model, on_gpu):
    """The model, whose weights are divided among the processes; a block gathers its own before it runs."""
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def numbered(text):
    """The numbers of the letters of a text."""
    return [NUMBERS.get(letter, 0) for letter in text]


def batch(documents, length):
    """The begin of each document, as numbers."""
    return torch.tensor([numbered(text[:length]) for text in documents])


class Job:
    """What is trained, and this process's documents."""

    def __init__(self, model, device, documents, length):
        self.model = sharded(model, device == "cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.device, self.documents, self.length = device, documents, length


def build(device, small=False, seed=0, dtype=torch.float32):
    """The same weights for all processes. Every second one reads books, the others posts."""
    width, blocks, rows, length = (8, 2, 2, 8) if small else (2048, 4, 8, 512)
    torch.manual_seed(seed)
    with torch.device(device):
        model = Network(width, blocks).to(dtype)
    chance = random.Random(seed + dist.get_rank())
    letters = (BOOKS if dist.get_rank() % 2 else POSTS) // (50 if small else 1)
    documents = ["".join(chance.choices(LETTERS, k=letters)) for _ in range(2 * rows)]
    return Job(model, device, documents, length)


def train(job, steps):
    """So many steps. Returns the loss of each, on this process's documents."""
    losses = []
    for _ in range(steps):
        half = len(job.documents) // 2
        job.documents = job.documents[half:] + job.documents[:half]
        letters = batch(job.documents[:half], job.length + 1).to(job.device)
        job.optimizer.zero_grad()
        loss = job.model(letters)
        loss.backward()
        job.optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main():
    parser = argparse.ArgumentParser(description="Train a network with FSDP2.")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it as torchrun --nproc-per-node 2 train_fsdp.py")
    on_gpu = args.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    job = build(args.device, small=not on_gpu)
    train(job, WARM)
    begin = time.perf_counter()
    losses = train(job, args.steps)
    took_ms = 1e3 * (time.perf_counter() - begin) / args.steps
    print(f"rank {dist.get_rank()}: loss {losses[-1]:.4f}, {took_ms:.2f} ms per step")
    del job  # FSDP2's hooks hold the process group
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
