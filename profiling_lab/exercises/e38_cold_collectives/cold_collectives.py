# SPDX-License-Identifier: Apache-2.0
"""The begin of a job: every process reads its samples, and in each step they add up a gradient.

torchrun --nproc-per-node 2 cold_collectives.py
torchrun --nproc-per-node 2 cold_collectives.py --device cpu
"""

import argparse
import json
import os

import torch
import torch.distributed as dist

from profiling_lab.exercises.e38_cold_collectives.link import MIB, TorchLink
from profiling_lab.utils import nvtx

STEPS = 10
FEW, MANY = 100, 5000  # samples of a process


def written(rank):
    """What is in the file of a process: a sample on each line. The files are not of one size."""
    lines = MANY if rank % 2 else FEW
    return [json.dumps({"number": n, "words": ["a", "b", "c"], "weight": n / 7}) for n in range(lines)]


def read(file):
    """The samples in it."""
    return [json.loads(line) for line in file]


def main():
    parser = argparse.ArgumentParser(description="Add up a gradient over all processes, step by step.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it as torchrun --nproc-per-node 2 cold_collectives.py")
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank, file = dist.get_rank(), written(dist.get_rank())
    link, spans, samples = TorchLink(args.device), [], []
    for step in range(args.steps):
        with nvtx.range(f"step {step}"):
            if step == 1:
                samples = read(file)
            begin = link.event()
            with nvtx.range(f"all_reduce {step}"):
                dist.all_reduce(link.gradient)
            spans.append((begin, link.event()))
    link.synchronize()
    if rank == 0:
        took_us = [link.us_between(*span) for span in spans]
        print(f"all-reduce of {MIB} MiB in each step, us: {' '.join(f'{us:.0f}' for us in took_us)}")
        mean_us = sum(took_us) / len(took_us)
        print(f"on average {mean_us:.0f} us, {MIB * 2**20 / mean_us / 1e3:.2f} GB/s; {len(samples)} samples")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
