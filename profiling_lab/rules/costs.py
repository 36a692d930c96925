# SPDX-License-Identifier: Apache-2.0
"""Costs in wall-clock time. No moment counts twice, and none outside of the recording.

So no cost exceeds the recording, even if kernels run concurrently, several GPUs work, several threads wait,
or many operations share one call, as the kernels of a CUDA graph do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.device_spans import recorded
from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass
from profiling_lab.rules.finding import ms, percent
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I32, I64, unique


def gpu_time(view: View, rows: npt.NDArray[np.integer], part_ns: I64 | None = None) -> int:
    """The time in which any of these operations ran, on the GPU where that is longest. `part_ns`: count only
    the last part of each operation.
    """
    operations, most = view.operations, 0
    chosen = np.zeros(len(operations), dtype=bool)
    chosen[rows] = True
    start_ns, end_ns = operations.start_ns, operations.end_ns
    if part_ns is not None:
        start_ns = start_ns.copy()
        start_ns[rows] = end_ns[rows] - part_ns
    for _, _, of_device in view.devices:
        mine = of_device[chosen[of_device]]
        if len(mine):
            most = max(most, Busy.of(start_ns[mine], end_ns[mine]).total_ns)
    return most


def kernels_and_time(view: View, rows: npt.NDArray[np.integer]) -> str:
    """Words: how many these are, and their time."""
    total_ns = int(view.operations.duration_ns[rows].sum())
    return f"{len(rows):,} kernels, {ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time"


def within_recording(view: View, start_ns: I64, end_ns: I64) -> int:
    """The total length of these intervals within the recorded GPU activity, overlaps counted once."""
    together, looked_at = Busy.of(start_ns, end_ns), Busy(*recorded(view.trace))
    return int(looked_at.busy_within(together.start_ns, together.end_ns).sum())


def idle_within(view: View, process: I32, start_ns: I64, end_ns: I64) -> I64:
    """How long no GPU of its process worked in each of these intervals."""
    idle_ns = end_ns - start_ns
    for number, mine in grouped(np.arange(len(start_ns)), process):
        idle_ns[mine] -= view.processes[number].busy_within(start_ns[mine], end_ns[mine])
    return idle_ns


@dataclass(frozen=True, slots=True)
class HostBlocked:
    """Host threads that were blocked in calls."""

    calls: I64
    """rows of the calls, each once"""
    each_ns: I64
    """the duration of each call within the recording"""
    total_ns: int
    """the blocked time of the thread that was blocked longest"""


def host_blocked(view: View, calls: npt.NDArray[np.integer]) -> HostBlocked:
    """How long these calls blocked the host within the recorded GPU activity. -1 stands for no call."""
    rows = unique(calls[calls >= 0]).astype(np.int64)
    looked_at = Busy(*recorded(view.trace))
    start_ns, end_ns = view.calls.start_ns[rows], view.calls.end_ns[rows]
    threads = grouped(np.arange(len(rows)), view.calls.thread[rows])
    longest = (within_recording(view, start_ns[mine], end_ns[mine]) for _, mine in threads)
    return HostBlocked(rows, looked_at.busy_within(start_ns, end_ns), max(longest, default=0))
