# SPDX-License-Identifier: Apache-2.0
"""Job: the recordings of a job of many ranks with known truth, in a few lines.

    job = Job(ranks=4, steps=5)
    job.slow_compute[3] = 2_000_000             # rank 3 computes 2 ms longer per step, at SLOW_LINE
    job.clock_error[1] = 5_000_000_000          # the clock of rank 1 is 5 s ahead
    paths = job.write(tmp_path)

A step copies its input, computes, and makes `collectives` all-reduces: each begins on a rank when that one
has computed and ends on all TRANSFER_NS after the last has come; ENDS_APART_NS tells their ends apart.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders import HOST_NS, TraceBuilder

EPOCH_NS = 1_780_000_000_000_000_000
TRANSFER_NS = 300_000
COMPUTE_NS = 1_000_000
COPY_NS = 100_000
ENDS_APART_NS = 500
BYTES = 4 << 20
COMPUTE_LINE = "/app/model.py:10"
SLOW_LINE = "/app/model.py:42"
HOST_LINE = "/app/data.py:7"
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_HOST_AHEAD_NS = 8_000


@dataclass(frozen=True)
class Moment:
    """An operation of a rank in true time."""

    what: str
    """'compute', 'slow', 'copy', 'collective', 'overlapping' (compute on another stream) or 'host' (late)"""
    start_ns: int
    end_ns: int
    step: int
    number: int = 0


def _zeros() -> defaultdict[int, int]:
    return defaultdict(int)


@dataclass
class Job:
    """What a job does; `write` makes one file per rank, `write_one` one file of all."""

    ranks: int = 4
    steps: int = 5
    collectives: int = 2
    slow_compute: defaultdict[int, int] = field(default_factory=_zeros)
    """by rank, extra ns per step"""
    late_host: defaultdict[int, int] = field(default_factory=_zeros)
    """by rank, ns per step in which its GPU waits for the host"""
    clock_error: defaultdict[int, int] = field(default_factory=_zeros)
    begins_late: defaultdict[int, int] = field(default_factory=_zeros)
    """by rank, steps before its recording began"""
    lacks: set[tuple[int, int, int]] = field(default_factory=set)
    """(rank, step, number) of collectives that were not recorded"""
    turns_ns: int = 0
    """in each step another rank computes this much longer"""
    hides: bool = False
    """other compute overlaps each collective as long as a rank waits in it"""
    extra: dict[tuple[int, int], int] = field(default_factory=dict)
    """by (rank, step), ns that a rank computes longer in one step"""
    lists_groups: bool = False
    """torch notes the ranks of each group"""
    starts_apart_ns: int = 2_000
    all_to_all: dict[tuple[int, int], int] = field(default_factory=dict)
    """the collectives are all-to-alls: by (rank, step), ns that a rank takes longer to leave them"""
    calendar: bool = True
    """files tie their clocks to the calendar"""

    def moments(self) -> list[list[Moment]]:
        """The true course, per rank."""
        out: list[list[Moment]] = [[] for _ in range(self.ranks)]
        now = [10_000_000 + rank * self.starts_apart_ns for rank in range(self.ranks)]
        for step in range(self.steps):
            for rank in range(self.ranks):
                self._work(out[rank], now, rank, step)
            for number in range(self.collectives):
                end = max(now) + TRANSFER_NS
                for rank in range(self.ranks):
                    left = end + rank * ENDS_APART_NS + self.all_to_all.get((rank, step), 0)
                    if self.hides and now[rank] < end - TRANSFER_NS:
                        out[rank].append(Moment("overlapping", now[rank], end - TRANSFER_NS, step))
                    out[rank].append(Moment("collective", now[rank], left, step, number))
                    now[rank] = left
                    if number + 1 < self.collectives:
                        self._add(out[rank], now, rank, "compute", COMPUTE_NS // 2, step)
        return out

    def _work(self, out: list[Moment], now: list[int], rank: int, step: int) -> None:
        if self.late_host[rank]:
            self._add(out, now, rank, "host", self.late_host[rank], step)
        self._add(out, now, rank, "copy", COPY_NS, step)
        self._add(out, now, rank, "compute", COMPUTE_NS, step)
        slow_ns = self.slow_compute[rank] + (self.turns_ns if step % self.ranks == rank else 0)
        slow_ns += self.extra.get((rank, step), 0)
        if slow_ns:
            self._add(out, now, rank, "slow", slow_ns, step)

    @staticmethod
    def _add(out: list[Moment], now: list[int], rank: int, what: str, ns: int, step: int) -> None:
        out.append(Moment(what, now[rank], now[rank] + ns, step))
        now[rank] += ns

    def recorded(self) -> Iterator[tuple[int, list[Moment]]]:
        """What the recordings hold, by rank."""
        for rank, moments in enumerate(self.moments()):
            yield (
                rank,
                [
                    m
                    for m in moments
                    if (m.step >= self.begins_late[rank] and (rank, m.step, m.number) not in self.lacks)
                    or (m.step >= self.begins_late[rank] and m.what != "collective")
                ],
            )

    def write(self, folder: Path, name: str = "run.rank{rank}.sqlite", facts: bool = False) -> list[Path]:
        """One recording of ours per rank; `facts`: it notes its rank."""
        paths = []
        for rank, moments in self.recorded():
            builder = TraceBuilder(pid=100 + rank)
            _fill(builder, moments, rank, pid=100 + rank, zero_ns=0)
            if self.calendar:
                builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS + self.clock_error[rank])
            if facts:
                builder.row("PYREC_META", name="rank", value=str(rank))
                builder.row("PYREC_META", name="world_size", value=str(self.ranks))
            paths.append(builder.write(folder / name.format(rank=rank)))
        return paths

    def write_one(self, path: Path) -> Path:
        """One file with a process per rank, as nsys makes it of a node."""
        builder = TraceBuilder(form="nsys")
        for rank, moments in self.recorded():
            _fill(builder, moments, rank, pid=100 + rank, zero_ns=0)
        return builder.write(path)

    def write_torch(self, folder: Path, sequence: bool = True) -> list[Path]:
        """torch.profiler's files, with what it notes of collectives."""
        paths = []
        for rank, moments in self.recorded():
            path = folder / f"worker{rank}.pt.trace.json"
            path.write_text(json.dumps(self._torch(rank, moments, sequence)))
            paths.append(path)
        return paths

    def _torch(self, rank: int, moments: list[Moment], sequence: bool) -> dict[str, Any]:
        zero_ns = EPOCH_NS + self.clock_error[rank]
        events: list[dict[str, Any]] = []

        def event(cat: str, name: str, start_ns: int, end_ns: int, pid: int, tid: int, **args: Any) -> None:
            events.append(
                {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start_ns / 1000,
                 "dur": (end_ns - start_ns) / 1000, "args": args}
            )  # fmt: skip

        for step in sorted({m.step for m in moments}):
            mine = [m for m in moments if m.step == step]
            event("user_annotation", f"ProfilerStep#{step}", mine[0].start_ns - 20_000,
                  mine[-1].end_ns - 20_000, 7, 7)  # fmt: skip
        ahead = moments[0].start_ns - _HOST_AHEAD_NS
        for i, moment in enumerate(m for m in moments if m.what != "host"):
            ahead += HOST_NS if i else 0
            event("cuda_runtime", "cudaLaunchKernel", ahead, ahead + 3000, 7, 7, correlation=i)
            details: dict[str, Any] = {"device": rank, "stream": 7, "correlation": i}
            name, cat = "gemm", "kernel"
            if moment.what == "copy":
                name, cat = "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"
            elif moment.what == "collective":
                name = "ncclDevKernel_SendRecv" if self.all_to_all else KERNEL
                details |= {
                    "Collective name": "all_to_all" if self.all_to_all else "allreduce",
                    "In msg nelems": BYTES // 4,
                    "Out msg nelems": BYTES // 4,
                    "dtype": "Float",
                    "Group size": self.ranks,
                    "Process Group Name": "0",
                    "Process Group Description": "default_pg",
                    "Process Group Ranks": _shortened(self.ranks),
                }
                if sequence:
                    details["Seq"] = moment.step * self.collectives + moment.number
            event(cat, name, moment.start_ns, moment.end_ns, rank, 7, **details)
        return {
            "schemaVersion": 1,
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": self.ranks,
                "pg_config": [{"pg_name": "0", "ranks": list(range(self.ranks))}]
                if self.lists_groups
                else "",
            },
            "baseTimeNanoseconds": zero_ns,
            "traceEvents": events,
        }


def _shortened(ranks: int) -> str:
    """torch lists no more than 30 ranks of a group."""
    return str(list(range(ranks))) if ranks <= 30 else f"{str(list(range(30)))[:-1]}, ...]"


def _fill(builder: TraceBuilder, moments: list[Moment], rank: int, pid: int, zero_ns: int) -> None:
    """The rows of one rank. The host runs ahead of the GPU, unless it is late."""
    step_began: dict[int, int] = {}
    is_late = True
    for moment in moments:
        if is_late:
            builder.now_ns = moment.start_ns - zero_ns - _HOST_AHEAD_NS
        is_late = moment.what == "host"
        if moment.what != "host":
            step_began.setdefault(moment.step, builder.now_ns)
        how: dict[str, Any] = {"start_ns": moment.start_ns - zero_ns, "pid": pid, "device": rank}
        length = moment.end_ns - moment.start_ns
        if moment.what == "host":
            # The host had waited for the step before.
            waits_ns = moment.start_ns - zero_ns + 2_000 - builder.now_ns
            if waits_ns > 0:
                builder.call(
                    "cudaDeviceSynchronize", pid=pid, call_ns=waits_ns, stack="/app/train.py:22 step"
                )
            continue
        if moment.what == "copy":
            waits = any(m.what == "host" and m.step == moment.step for m in moments)
            builder.copy("HtoD", length, stack=f"{HOST_LINE if waits else '/app/data.py:3'} load", **how)
        elif moment.what == "collective":
            builder.launch(KERNEL, length, stack="/app/train.py:20 step", **how)
        else:
            line = SLOW_LINE if moment.what == "slow" else COMPUTE_LINE
            stream = 9 if moment.what == "overlapping" else 7
            builder.launch("gemm", length, stack=f"{line} forward", stream=stream, **how)
    began = sorted(step_began.items())
    for i, (_, start_ns) in enumerate(began):
        end_ns = began[i + 1][1] if i + 1 < len(began) else builder.now_ns + 100_000
        builder.range("training_step", start_ns, end_ns - 1, globalTid=builder.tid(1, pid))
