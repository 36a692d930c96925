# SPDX-License-Identifier: Apache-2.0
"""The tracks of slices: threads of the program and streams of the GPUs.

A viewer draws a track as a stack and drops slices that overlap without nesting. For those a track gets extra
lanes, each with its own track.
"""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.records import dataclass
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32, I64, dense

# Thread ids for additional tracks: larger than thread ids of Linux.
_FIRST_TID = 1 << 22


@dataclass(frozen=True, slots=True)
class Track:
    """A track of the viewer."""

    pid: int
    tid: int
    process_name: str
    process_order: int
    name: str
    order: int


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices on tracks, one row each."""

    start_ns: I64
    end_ns: I64
    track: I32
    """row of `tracks`"""
    tracks: tuple[Track, ...]

    def order(self) -> I64:
        """Rows by start time, the longer one first, as needed for nesting."""
        return np.lexsort((-self.end_ns, self.start_ns)).astype(np.int64)


def host_slices(
    trace: Trace, start_ns: I64, end_ns: I64, thread: I32, process: I32, first_tid: int = _FIRST_TID
) -> Slices:
    """Slices on the threads of the program."""
    pids, tids, names = trace.pids, trace.tids, trace.source.thread_names()
    process_of = dict(zip(thread.tolist(), process.tolist(), strict=True)) if len(thread) else {}
    lane, rows = _lanes(start_ns, end_ns, thread)
    tracks: list[Track] = []
    for number, level in rows:
        pid, tid = pids[process_of[number]], tids[number]
        name = names.get(number) or "thread"
        tracks.append(
            Track(
                pid=pid,
                tid=tid if level == 0 else first_tid + len(tracks),
                process_name=f"process {pid}",
                process_order=process_of[number],
                name=f"{name} {tid}{_level(level)}",
                order=number * 100 + level,
            )
        )
    return Slices(start_ns, end_ns, lane, tuple(tracks))


def gpu_slices(trace: Trace, first_tid: int = 2 * _FIRST_TID) -> Slices:
    """GPU operations on their streams. Every GPU of every process is a process in the viewer."""
    operations = trace.operations
    device = operations.process.astype(np.int64) << 32 | (operations.device.astype(np.int64) & 0xFFFFFFFF)
    device_number, devices = dense(device)
    stream, streams = dense(operations.stream)
    number, pairs = dense(device_number.astype(np.int64) << 32 | stream)
    lane, rows = _lanes(operations.start_ns, operations.end_ns, number)
    several = len(set(operations.process.tolist())) > 1
    taken = set(trace.pids)
    gpu_pids = [i for i in range(len(devices) + len(taken)) if i not in taken][: len(devices)]
    tracks: list[Track] = []
    for pair, level in rows:
        at, on = int(pairs[pair]) >> 32, int(pairs[pair]) & 0xFFFFFFFF
        ordinal = int(np.int64(devices[at]).astype(np.int32))
        of = f" of process {trace.pids[int(devices[at]) >> 32]}" if several else ""
        tracks.append(
            Track(
                pid=gpu_pids[at],
                tid=first_tid + len(tracks),
                process_name=f"GPU {ordinal}{of}",
                process_order=1000 + at,
                name=f"stream {int(streams[on])}{_level(level)}",
                order=on * 100 + level,
            )
        )
    return Slices(operations.start_ns, operations.end_ns, lane, tuple(tracks))


def _lanes(start_ns: I64, end_ns: I64, number: I32) -> tuple[I32, list[tuple[int, int]]]:
    """Per slice a row of the list of (track, lane) pairs, which is in order."""
    lane = _analysis.nesting_lanes(start_ns, end_ns, number)
    pair, distinct = dense(number.astype(np.int64) << 32 | lane)
    ranked = np.argsort(distinct)
    place = np.empty(len(distinct), dtype=np.int32)
    place[ranked] = np.arange(len(distinct), dtype=np.int32)
    rows = [(int(value) >> 32, int(value) & 0xFFFFFFFF) for value in distinct[ranked].tolist()]
    return (place[pair] if len(pair) else pair), rows


def _level(level: int) -> str:
    return f" (overlapping {level})" if level else ""
