# SPDX-License-Identifier: Apache-2.0
"""How full GPU memory was over time: the most of each of many short intervals."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.devices import HOW, DeviceMemory, device_memories
from profiling_lab.analysis.memory.memory import first_ns
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """The most of one interval."""

    key: str
    pid: int
    device: int
    start_ns: int
    """since the trace's first event"""
    end_ns: int
    allocated_bytes: int
    reserved_bytes: int
    events: int


@dataclass(frozen=True, slots=True)
class TimelineResult:
    """Intervals in time order, by process and device."""

    rows: tuple[TimelineRow, ...]
    total_matched: int


def timeline(trace: Trace, intervals: int = 40) -> TimelineResult:
    """Divide the time from the first to the last event into equal intervals.

    Raises UsageError, NotEnoughDataError if the trace has no history of the allocator.
    """
    if intervals < 1:
        raise UsageError(f"expected at least 1 interval, not {intervals}")
    devices = device_memories(trace)
    zero = first_ns(trace, devices)
    rows: list[TimelineRow] = []
    for each in devices:
        rows += _rows(each, intervals, zero)
    if not rows:
        raise NotEnoughDataError(f"{trace.path} has no event of torch's allocator: it needs {HOW}")
    return TimelineResult(tuple(rows), len(rows))


def curve(each: DeviceMemory, points: int) -> tuple[I64, I64, I64]:
    """Times, and the most allocated and reserved from each time to the next."""
    times = each.history.time_ns
    if not len(times):
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing
    begin, span = int(times[0]), int(times[-1]) + 1 - int(times[0])
    edges = begin + span * np.arange(points + 1, dtype=np.int64) // points
    first = np.searchsorted(times, edges[:-1], "left")
    replayed = each.replayed
    return edges[:-1], _highest(replayed.allocated, first), _highest(replayed.reserved, first)


def _highest(held: I64, first: I64) -> I64:
    """The most from each of these rows to the next, and what was held when it began."""
    before = held[np.maximum(first - 1, 0)]
    inside = np.maximum.reduceat(np.append(held, 0), np.minimum(first, len(held)))
    is_empty = np.append(first[1:], len(held)) <= first
    return np.where(is_empty, before, np.maximum(inside, np.where(first > 0, before, 0)))


def _rows(each: DeviceMemory, intervals: int, zero: int) -> list[TimelineRow]:
    times, allocated, reserved = curve(each, intervals)
    if not len(times):
        return []
    ends = np.append(times[1:], int(each.history.time_ns[-1]) + 1)
    counts = np.diff(np.searchsorted(each.history.time_ns, np.append(times, ends[-1]), "left"))
    return [
        TimelineRow(
            key=f"{number} GPU {each.device}" + (f" pid {each.pid}" if each.pid else ""),
            pid=each.pid,
            device=each.device,
            start_ns=int(times[number]) - zero,
            end_ns=int(ends[number]) - zero,
            allocated_bytes=int(allocated[number]),
            reserved_bytes=int(reserved[number]),
            events=int(counts[number]),
        )
        for number in range(len(times))
    ]
