# SPDX-License-Identifier: Apache-2.0
"""Train a network with DistributedDataParallel, and note how large its weights are.

torchrun --nproc-per-node 2 train_ddp.py --steps 3
torchrun --nproc-per-node 2 train_ddp.py --trace traces     # with torch.profiler: a trace for each rank
"""

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WARM, TRACED = 2, 3  # steps


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

    def __init__(self, width, blocks, letters=256):
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.scores = nn.Linear(width, letters)

    def forward(self, letters):
        scores = self.scores(self.blocks(self.embedding(letters[:, :-1])))
        return F.cross_entropy(scores.flatten(0, 1), letters[:, 1:].flatten())


@torch.no_grad()
def sizes(model, part=0.99):
    """Of the weights of each layer, the size that this part of them does not exceed."""
    found = []
    for weight in (module.weight for module in model.modules() if isinstance(module, nn.Linear)):
        ordered = weight.abs().flatten().sort().values
        found.append(ordered[int(part * (len(ordered) - 1))])
    return torch.stack(found)


class Job:
    """What is trained, this process's letters, and the log, which the first process keeps."""

    def __init__(self, model, device, letters):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.letters, self.on_gpu = letters.to(device), device == "cuda"


def build(device, small=False, seed=0, dtype=torch.float32):
    """The same weights in every process, other letters in each."""
    width, blocks, rows, length = (8, 2, 2, 8) if small else (2048, 4, 8, 512)
    torch.manual_seed(seed)
    with torch.device(device):
        model = Network(width, blocks).to(dtype)
    chance = torch.Generator().manual_seed(seed + 1 + dist.get_rank())
    return Job(model, device, torch.randint(256, (rows, length + 1), generator=chance))


def train(job, steps, after_step=lambda: None):
    """So many steps. Returns the loss of each, and in the first process the sizes after each."""
    losses, log = [], []
    for _ in range(steps):
        job.optimizer.zero_grad()
        with torch.autocast(job.letters.device.type, torch.bfloat16, enabled=job.on_gpu):
            loss = job.model(job.letters)
        loss.backward()
        job.optimizer.step()
        if dist.get_rank() == 0:
            log.append(sizes(job.model))
        losses.append(loss.detach())
        after_step()
    return torch.stack(losses).tolist(), [each.tolist() for each in log]


def traced(folder):
    """torch.profiler around the steps after the warm-up; it writes a trace of this rank into the folder."""
    from torch.profiler import profile, schedule

    def write(profiler):
        profiler.export_chrome_trace(str(Path(folder) / f"trace.rank{dist.get_rank()}.json.gz"))

    Path(folder).mkdir(parents=True, exist_ok=True)
    return profile(schedule=schedule(wait=WARM - 1, warmup=1, active=TRACED, repeat=1), on_trace_ready=write)


def main():
    parser = argparse.ArgumentParser(description="Train a network with DistributedDataParallel.")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--trace", metavar="FOLDER", help="write traces of torch.profiler into it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it as torchrun --nproc-per-node 2 train_ddp.py")
    on_gpu = args.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    job = build(args.device, small=not on_gpu)
    with traced(args.trace) if args.trace else nullcontext() as profiler:
        after_step = profiler.step if profiler else lambda: None
        train(job, WARM, after_step)
        begin = time.perf_counter()
        losses, _ = train(job, max(args.steps, TRACED), after_step)
        took_ms = 1e3 * (time.perf_counter() - begin) / max(args.steps, TRACED)
    print(f"rank {dist.get_rank()}: loss {losses[-1]:.4f}, {took_ms:.2f} ms per step")
    del job  # DDP holds the process group
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
