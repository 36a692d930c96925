# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks/distributed/train_model.py in some ways, two processes each, as torchrun starts them.

    train_model_ways.py FOLDER WAY...      for `single` one process; prints "WAY: LOSS LOSS ..." for each

Processes are forked from one that has imported torch. They meet over a file in the folder.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import train_model


def work(rank: int, way: str, folder: str, world: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    store = f"file://{folder}/{way}.store"
    whole = dist.init_process_group

    def over_a_file(backend: str) -> None:
        whole(backend, init_method=store, rank=rank, world_size=world)

    dist.init_process_group = over_a_file
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        train_model.main(["--way", way])
    if rank == 0:
        Path(folder, f"{way}.txt").write_text(printed.getvalue())


if __name__ == "__main__":
    place, ways = sys.argv[1], sys.argv[2:]
    for one in ways:
        count = 1 if one == "single" else 2
        mp.start_processes(work, args=(one, place, count), nprocs=count, start_method="fork")
        steps = [line for line in Path(place, f"{one}.txt").read_text().splitlines() if ": loss " in line]
        print(f"{one}:", *(line.rsplit(" ", 1)[1] for line in steps), flush=True)
