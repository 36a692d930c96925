# SPDX-License-Identifier: Apache-2.0
"""The launch queue between host and GPU: how full it is, and how fast the host fills it."""

from __future__ import annotations

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.rules.costs import host_blocked, within_recording
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, OverheadKind, median, unique


def full_queue_ns(view: View, process: int) -> int:
    """How long the host waited for room in the command buffer, if the trace records that."""
    overheads = view.trace.overheads
    rows = (overheads.kind == OverheadKind.COMMAND_BUFFER_FULL) & (overheads.process == process)
    return within_recording(view, overheads.start_ns[rows], overheads.end_ns[rows])


def launches_of(view: View, kernels: I64) -> I64:
    """The calls that launched these kernels, each once. All kernels of a CUDA graph share one."""
    call = view.attribution.call[kernels]
    return unique(call[call >= 0]).astype(np.int64)


def launching_ns(view: View, launches: I64, slow_ns: float) -> int:
    """How long the host was in these calls, but for those that take `slow_ns` or more: they load code."""
    quick = launches[view.calls.end_ns[launches] - view.calls.start_ns[launches] < slow_ns]
    return host_blocked(view, quick).total_ns


@dataclass(frozen=True, slots=True)
class LaunchPace:
    """Whether the launches of some kernels kept up with the GPU."""

    known: I64
    """the kernels whose launch was recorded"""
    starved: I64
    """the kernels that started on an idle GPU: it had no work left when their launch returned"""
    starved_ns: I64
    """the GPU's idle time before each of these"""
    interval_ns: float
    """the median time from launch to launch"""
    kernel_ns: float
    """the median duration of a kernel"""
    fullest: int
    """the most launches queued on one stream"""

    @property
    def starved_frac(self) -> float:
        return len(self.starved) / max(len(self.known), 1)


def launch_pace(view: View, kernels: I64) -> LaunchPace:
    """`kernels` are rows of one process."""
    operations, calls, call = view.operations, view.calls, view.attribution.call
    known = kernels[call[kernels] >= 0]
    if not len(known):
        return LaunchPace(known, known, known, 0.0, 0.0, 0)
    mine = np.flatnonzero(operations.process == operations.process[known[0]])
    mine = mine[np.argsort(operations.start_ns[mine], kind="stable")]
    done = np.maximum.accumulate(operations.end_ns[mine])
    before = np.full(len(operations), np.iinfo(np.int64).max)
    before[mine[1:]] = done[:-1]
    starved = known[before[known] <= calls.end_ns[call[known]]]
    launched = np.sort(calls.start_ns[call[known]])
    return LaunchPace(
        known,
        starved,
        operations.start_ns[starved] - before[starved],
        float(median(np.diff(launched))) if len(known) > 1 else 0.0,
        float(median(operations.duration_ns[known])),
        fullest_queue(view, known),
    )


def fullest_queue(view: View, kernels: I64) -> int:
    """The most launches of these kernels queued on one stream. Their launches must be known."""
    if not len(kernels):
        return 0
    launched = view.calls.start_ns[view.attribution.call[kernels]]
    stream, fullest = view.operations.stream[kernels], 0
    for number in unique(stream).tolist():
        mine = stream == number
        launches, begins = np.sort(launched[mine]), np.sort(view.operations.start_ns[kernels][mine])
        waiting = np.arange(1, len(launches) + 1) - np.searchsorted(begins, launches, "right")
        fullest = max(fullest, int(waiting.max()))
    return fullest


def waits_between(view: View, launches: I64) -> tuple[int, int]:
    """The line of most waits of the host between these launches, -1 unknown; and into how many pieces the
    waits cut them, 0 for none.
    """
    if not len(launches):
        return -1, 0
    calls, waits = view.calls, view.waits
    waits = waits[calls.process[waits] == calls.process[launches[0]]]
    waits = waits[np.argsort(calls.end_ns[waits], kind="stable")]
    piece = unique(np.searchsorted(calls.end_ns[waits], calls.start_ns[launches], "right"))
    between = waits[piece[piece > 0] - 1]
    if not len(between):
        return -1, 0
    places = view.wait_place(between)
    return int(np.bincount(places + 1).argmax()) - 1, len(piece)
