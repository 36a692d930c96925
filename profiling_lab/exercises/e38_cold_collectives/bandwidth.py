# SPDX-License-Identifier: Apache-2.0
"""How fast is the link between the GPUs? It says: hardly at all.

torchrun --nproc-per-node 2 bandwidth.py
python bandwidth.py --simulated
"""

import argparse
import os

import torch
import torch.distributed as dist

from profiling_lab.exercises.e38_cold_collectives.link import MIB, SimulatedLink, TorchLink


def measure(link):
    """The microseconds that an all-reduce takes on this link, once all processes have come to it."""
    calls = 10
    begin = link.event()
    for _ in range(calls):
        link.all_reduce()
    end = link.event()
    link.synchronize()
    return link.us_between(begin, end) / calls


def show(link):
    us = measure(link)
    print(f"an all-reduce of {MIB} MiB takes {us:.1f} us: {MIB * 2**20 / us / 1e3:.2f} GB/s")


def main():
    parser = argparse.ArgumentParser(description="Measure an all-reduce.")
    parser.add_argument("--simulated", action="store_true", help="a link that is computed: 30 us")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.simulated:
        show(SimulatedLink(30.0))
        return
    if "RANK" not in os.environ:
        parser.error("start it as torchrun --nproc-per-node 2 bandwidth.py, or with --simulated")
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    show(TorchLink(args.device))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
