# SPDX-License-Identifier: Apache-2.0
"""Time collectives of many sizes on the ranks of this machine, or of a job: what its links reach.

Messages are as the table of `collectives` has them: the part of one rank for all-gather and reduce-scatter,
the whole buffer for the others. A time is the slowest rank's. On GPUs it is the time from one call to the
next on the GPU: the calls of a sample wait in the launch queue behind other work, so that launching, which
takes longer than a small collective, is not in it.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

KIB, GIB = 1 << 10, 1 << 30
KINDS = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "SendRecv", "Broadcast", "Reduce")
OF_A_PART = ("AllGather", "ReduceScatter")
"""kinds whose message is the part of one rank"""
SAMPLES, SAMPLE_S = 5, 2e-3
FEWEST_CALLS, MOST_CALLS = 2, 50
CYCLES_PER_CALL = 80_000
"""of a GPU's clock: in about 40 us the host launches the next call"""
MOST_TRIES = 4

Row = dict[str, Any]


def sizes(largest_bytes: int = GIB) -> list[int]:
    """Bytes of the whole buffer: from 1 KiB up to the largest, each four times the one before."""
    found = [KIB]
    while found[-1] * 4 <= largest_bytes:
        found.append(found[-1] * 4)
    return found


def on_each_rank(asked: dict[str, Any]) -> list[Row]:
    """The times of all kinds and sizes, on groups of 2, 4, ... and all ranks; [] on ranks other than 0.

    Needs the default process group. asked: largest_bytes. What the backend cannot do has no row. A row has
    kind, ranks, size_bytes (of the message), time_ns (the median of the samples), spread_ns (between their
    first and third quartile) and calls (of a sample).
    """
    import torch
    import torch.distributed as dist

    rank, everyone = dist.get_rank(), dist.get_world_size()
    on_gpu = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    all_sizes = sizes(_that_fit(int(asked["largest_bytes"]), device))
    rows: list[Row] = []
    for ranks in group_sizes(everyone):
        group = dist.new_group(list(range(ranks))) if ranks < everyone else None
        if rank < ranks:
            rows += _Group(group, device).rows(all_sizes)
        dist.barrier()
    return rows if rank == 0 else []


def _that_fit(largest_bytes: int, device: Any) -> int:
    """As many bytes, or what two buffers may take of the memory that every rank has free."""
    import torch
    import torch.distributed as dist

    if device.type != "cuda":
        return largest_bytes
    free = torch.tensor([torch.cuda.mem_get_info(device)[0]], device=device)
    dist.all_reduce(free, dist.ReduceOp.MIN)
    return min(largest_bytes, int(free) // 4)


def group_sizes(ranks: int) -> list[int]:
    """2, 4, 8, ... and all ranks."""
    return sorted({1 << power for power in range(1, ranks.bit_length()) if 1 << power <= ranks} | {ranks})


def backend(on_cpu: bool) -> str:
    """`nccl 2.28.9`, or gloo."""
    if on_cpu:
        return "gloo"
    import torch

    version = torch.cuda.nccl.version()
    return f"nccl {'.'.join(map(str, version))}" if isinstance(version, tuple) else "nccl"


def topology(ranks: int) -> str:
    """What joins the first GPUs of this machine, as `nvidia-smi topo -m` calls it; '' where it does not
    tell.
    """
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return links_in(done.stdout, ranks) if done.returncode == 0 else ""


def links_in(matrix: str, ranks: int) -> str:
    """The links between the first GPUs in the matrix of `nvidia-smi topo -m`: NV18; NODE, SYS."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", matrix).splitlines()]
    names = {f"GPU{number}" for number in range(ranks)}
    head = next((row for row in rows if row[:1] == ["GPU0"] and "GPU1" in row), [])
    columns = [number for number, name in enumerate(head) if name in names]
    found = [row[1:] for row in rows if row[:1] and row[0] in names and row is not head]
    kinds = {row[i] for row in found for i in columns if i < len(row) and row[i] != "X"}
    return ", ".join(sorted(kinds))


class _Group:
    """Times the collectives of one group of ranks; every member makes the same calls."""

    def __init__(self, group: Any, device: Any) -> None:
        import torch.distributed as dist

        self._group, self._device = group, device
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)

    def rows(self, all_sizes: list[int]) -> list[Row]:
        return [row for kind in KINDS for row in self._of_kind(kind, all_sizes)]

    def _of_kind(self, kind: str, all_sizes: list[int]) -> Iterator[Row]:
        import torch

        number = max(all_sizes) // 4
        source, target = (torch.zeros(number, device=self._device) for _ in range(2))
        for whole_bytes in all_sizes:
            elements = whole_bytes // 4 // self._ranks * self._ranks
            part = elements // self._ranks if kind in OF_A_PART else elements
            try:
                call = self._call(kind, source, target, elements)
                times, calls = self._times(call)
            except (RuntimeError, ValueError):  # on every rank, before anything is sent
                return
            quartiles = statistics.quantiles(times, n=4, method="inclusive")
            yield {
                "kind": kind,
                "ranks": self._ranks,
                "size_bytes": 4 * part,
                "time_ns": round(statistics.median(times)),
                "spread_ns": round(quartiles[2] - quartiles[0]),
                "calls": calls,
            }

    def _call(self, kind: str, source: Any, target: Any, elements: int) -> Callable[[], None]:
        """One collective; its first call is made here."""
        import torch.distributed as dist

        group, part = self._group, elements // self._ranks
        whole = source[:elements]
        after, before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks

        def pass_on() -> None:
            pair = [
                dist.P2POp(dist.isend, whole, after, group),
                dist.P2POp(dist.irecv, target[:elements], before, group),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()

        # torch 2.13 gives two of them other names.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Callable[[], Any]] = {
            "AllReduce": lambda: dist.all_reduce(whole, group=group),
            "AllGather": lambda: gather(target[:elements], whole[:part], group=group),
            "ReduceScatter": lambda: scatter(target[:part], whole, group=group),
            "AllToAll": lambda: dist.all_to_all_single(target[:elements], whole, group=group),
            "SendRecv": pass_on,
            "Broadcast": lambda: dist.broadcast(whole, 0, group),
            "Reduce": lambda: dist.reduce(whole, 0, group=group),
        }
        calls[kind]()
        return calls[kind]

    def _times(self, call: Callable[[], None]) -> tuple[list[float], int]:
        """The ns of a call in each sample, and how many calls a sample has."""
        first_ns = self._sample(call, FEWEST_CALLS)
        calls = min(max(int(SAMPLE_S * 1e9 / first_ns), FEWEST_CALLS), MOST_CALLS)
        return [self._sample(call, calls) for _ in range(SAMPLES)], calls

    def _sample(self, call: Callable[[], None], calls: int) -> float:
        if self._device.type != "cuda":
            self._meet()
            begin = time.perf_counter_ns()
            for _ in range(calls):
                call()
            return self._slowest(0, (time.perf_counter_ns() - begin) / calls)[1]
        cycles = CYCLES_PER_CALL * calls
        for _ in range(MOST_TRIES):
            launched_late, ns = self._slowest(*self._on_gpu(call, calls, cycles))
            if not launched_late:
                break
            cycles *= 2
        return ns

    def _on_gpu(self, call: Callable[[], None], calls: int, cycles: int) -> tuple[bool, float]:
        """Whether the GPU reached the calls before all were launched, and the ns of one."""
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._meet()
        torch.cuda._sleep(cycles)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        late = begin.query()
        torch.cuda.synchronize()
        return late, begin.elapsed_time(end) * 1e6 / calls

    def _meet(self) -> None:
        import torch
        import torch.distributed as dist

        dist.barrier(self._group)
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _slowest(self, late: bool | int, ns: float) -> tuple[bool, float]:
        """The most of all ranks, the same on each: they must go on in the same way."""
        import torch
        import torch.distributed as dist

        found = torch.tensor([float(late), ns], dtype=torch.float64, device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return bool(found[0]), float(found[1])
