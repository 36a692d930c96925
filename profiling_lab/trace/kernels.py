# SPDX-License-Identifier: Apache-2.0
"""The kernels that cost most, each with the Python frames that launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiling_lab import _analysis
from profiling_lab.errors import UsageError
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import OperationKind, dense
from profiling_lab.trace.coverage import Coverage, coverage
from profiling_lab.trace.lines import own_frames
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class LaunchStack:
    """One place in the program that launched a kernel: in backward, the forward place it belongs to."""

    frames: tuple[Frame, ...]
    """the user's frames, innermost first; every frame where none is the user's; () if there is no stack"""
    phase: str
    """'forward' (everything outside of backward), 'backward', or 'unknown': its call was not recorded"""
    gpu_ns: int
    count: int


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel, or all copies of one kind."""

    name: str
    short_name: str
    kind: str
    """'kernel', 'copy', 'set' or 'graph'"""
    total_ns: int
    count: int
    average_ns: int
    shortest_ns: int
    longest_ns: int
    share_frac: float
    """of all GPU time in the trace"""
    stacks: tuple[LaunchStack, ...]
    """the most expensive first"""

    @property
    def key(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class KernelsResult:
    """Rows by GPU time, the largest first."""

    rows: tuple[KernelRow, ...]
    coverage: Coverage
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def top_kernels(trace: Trace, limit: int | None = None, own: tuple[str, ...] | None = None) -> KernelsResult:
    """Sum GPU time by kernel name, copies and sets included, and list under each where it was launched.

    Raises NotEnoughDataError if the trace has no GPU operation.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    operations = trace.operations
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    duration = operations.duration_ns
    gpu_ns = int(duration.sum())
    name, names = _by_name(operations.name, operations.names)
    total, count = _analysis.sum_by_key(name, duration, len(names))
    ranked = sorted(range(len(names)), key=lambda i: (-int(total[i]), names[i]))
    shown = ranked[:limit]

    longest = np.zeros(len(names), dtype=np.int64)
    shortest = np.full(len(names), np.iinfo(np.int64).max)
    np.maximum.at(longest, name, duration)
    np.minimum.at(shortest, name, duration)
    first_row = np.full(len(names), len(operations), dtype=np.int64)
    np.minimum.at(first_row, name, np.arange(len(operations)))

    stacks = _launch_stacks(trace, name, set(shown), own_row)
    rows = tuple(
        KernelRow(
            name=names[i],
            short_name=operations.short_names[operations.name[first_row[i]]],
            kind=OperationKind(int(operations.kind[first_row[i]])).name.lower(),
            total_ns=int(total[i]),
            count=int(count[i]),
            average_ns=int(total[i]) // int(count[i]),
            shortest_ns=int(shortest[i]),
            longest_ns=int(longest[i]),
            share_frac=int(total[i]) / gpu_ns if gpu_ns else 0.0,
            stacks=stacks.get(i, ()),
        )
        for i in shown
    )
    return KernelsResult(rows, coverage(trace, own_row), len(names))


def _by_name(number: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, list[str]]:
    """Number equal names equally: one kernel may have several entries in a string table."""
    distinct = list(dict.fromkeys(names))
    position = {name: i for i, name in enumerate(distinct)}
    table = np.array([position[name] for name in names] or [0], dtype=np.int32)
    return table[number], distinct


def _launch_stacks(
    trace: Trace, name: np.ndarray, shown: set[int], own_row: np.ndarray
) -> dict[int, tuple[LaunchStack, ...]]:
    """Per kernel number its launch places. Python looks at distinct (kernel, stack, phase) only."""
    found = trace.attribution
    place = np.where(own_row[found.stack] > 0, own_row[found.stack], found.stack)
    combined = (name.astype(np.int64) << 34) | (place.astype(np.int64) << 2) | found.phase
    number, distinct = dense(combined)
    total, count = _analysis.sum_by_key(number, trace.operations.duration_ns, len(distinct))
    sums: dict[tuple[int, tuple[Frame, ...], int], list[int]] = {}
    for i, value in enumerate(distinct.tolist()):
        kernel, row, phase = value >> 34, (value >> 2) & 0xFFFFFFFF, value & 3
        if kernel not in shown:
            continue
        frames = own_frames(trace.stacks, own_row, row) or trace.stacks.of(row)
        entry = sums.setdefault((kernel, frames, phase), [0, 0])
        entry[0] += int(total[i])
        entry[1] += int(count[i])
    by_kernel: dict[int, list[LaunchStack]] = {}
    for (kernel, frames, phase), (ns, launches) in sums.items():
        by_kernel.setdefault(kernel, []).append(LaunchStack(frames, Phase(phase).name.lower(), ns, launches))
    return {
        kernel: tuple(sorted(found, key=lambda s: (-s.gpu_ns, s.phase, s.frames)))
        for kernel, found in by_kernel.items()
    }
