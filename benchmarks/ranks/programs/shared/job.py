# SPDX-License-Identifier: Apache-2.0
"""One process of a job: its rank and device, which delay is planted in it, and the loop that trains."""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

DELAYS = ("delay", "host")
"""names of what may be planted; most programs have the first alone"""
TIMEOUT_S = 60
"""of a collective"""
Step = Callable[[], object]
Build = Callable[["Job"], Step]
T = TypeVar("T")


class Job:
    """Joins the process group that the environment of a launcher such as torchrun tells of. NCCL where each
    process has a GPU, else gloo on the CPU, with tiny sizes.
    """

    def __init__(self, store: dist.Store | None = None) -> None:
        """store: where the processes meet, if not where the environment says."""
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        place = int(os.environ.get("LOCAL_RANK", self.rank))
        self.on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= self.world
        self.device = torch.device("cuda", place) if self.on_gpu else torch.device("cpu")
        options: dict[str, Any] = {"timeout": timedelta(seconds=TIMEOUT_S)}
        if store is not None:
            options |= {"store": store, "rank": self.rank, "world_size": self.world}
        if self.on_gpu:
            torch.cuda.set_device(self.device)
            dist.init_process_group("nccl", device_id=self.device, **options)
        else:
            torch.set_num_threads(1)
            dist.init_process_group("gloo", **options)
        # Workers of a data loader see what is mended, too.
        self._mended = torch.zeros(len(DELAYS), dtype=torch.bool).share_memory_()
        self._at_end: list[Callable[[], object]] = []

    def pick(self, gpu: T, cpu: T) -> T:
        """A size: on the CPU a program is only tried."""
        return gpu if self.on_gpu else cpu

    def mend(self, names: Iterable[str] = DELAYS) -> None:
        """Take these delays away, and plant the others."""
        names = tuple(names)
        self._mended.copy_(torch.tensor([name in names for name in DELAYS]))

    def planted(self, name: str = "delay") -> bool:
        """Whether a delay is there: it is not mended."""
        return not self._mended[DELAYS.index(name)]

    def delayed(self, rank: int, name: str = "delay") -> bool:
        """Whether this is the rank with a delay."""
        return self.rank == rank and self.planted(name)

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def barrier(self) -> None:
        """Every rank is here, and its GPU has done its work."""
        self.synchronize()
        dist.barrier()
        self.synchronize()

    def longest(self, value: float) -> float:
        """The largest of all ranks' values."""
        every = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(every, op=dist.ReduceOp.MAX)
        return every.item()

    def at_end(self, call: Callable[[], object]) -> None:
        """To be called when a program is over: what it started ends."""
        self._at_end.append(call)

    def end_program(self) -> None:
        while self._at_end:
            self._at_end.pop()()
        self.mend(())
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()

    def leave(self) -> None:
        """When programs are over. What then holds the group, as FSDP2's hooks do, would abort the process."""
        self.barrier()
        gc.collect()
        dist.destroy_process_group()


def run(build: Build) -> None:
    """Train, as the command line says, and print what a step takes."""
    parser = argparse.ArgumentParser(description="Start it with torchrun --nproc-per-node 2.")
    parser.add_argument("--mended", nargs="*", choices=DELAYS, help="without these delays (all)")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    job = Job()
    if args.mended is not None:
        job.mend(args.mended or DELAYS)
    step = build(job)
    warm = min(5, args.steps - 1)
    for number in range(args.steps):
        if number == warm:
            job.barrier()
            began = time.perf_counter()
        step()
    job.barrier()
    step_ms = 1e3 * job.longest(time.perf_counter() - began) / (args.steps - warm)
    if job.rank == 0:
        print(f"step_ms {step_ms:.3f}", flush=True)
    del step
    job.end_program()
    job.leave()
