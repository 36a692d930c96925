# SPDX-License-Identifier: Apache-2.0
"""What things cost, in time on a clock: no moment counts twice, and none outside of the recording.

So no cost exceeds the recording, however many kernels run at the same time, GPUs work side by side, threads
wait together, or operations share one call, as all kernels of a CUDA graph do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.device_spans import recorded
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64


def gpu_time(view: View, rows: npt.NDArray[np.integer], part_ns: I64 | None = None) -> int:
    """The time in which any of these operations ran, on the GPU with most of it. `part_ns`: of each of them
    only the last part.
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


def within_recording(view: View, start_ns: I64, end_ns: I64) -> int:
    """How long any of these stretches lasted while the recording's operations ran."""
    together, looked_at = Busy.of(start_ns, end_ns), Busy(*recorded(view.trace))
    return int(looked_at.busy_within(together.start_ns, together.end_ns).sum())


@dataclass(frozen=True, slots=True)
class Held:
    """Threads of the host that stood still in calls."""

    calls: I64
    """rows of the calls, each once"""
    each_ns: I64
    """how long each of them took within the recording"""
    total_ns: int
    """of the thread that was held longest"""


def held(view: View, calls: npt.NDArray[np.integer]) -> Held:
    """What these calls held of the host while the recording's operations ran; -1 is no call."""
    rows = np.unique(calls[calls >= 0]).astype(np.int64)
    looked_at = Busy(*recorded(view.trace))
    start_ns, end_ns = view.calls.start_ns[rows], view.calls.end_ns[rows]
    threads = grouped(np.arange(len(rows)), view.calls.thread[rows])
    longest = (within_recording(view, start_ns[mine], end_ns[mine]) for _, mine in threads)
    return Held(rows, looked_at.busy_within(start_ns, end_ns), max(longest, default=0))
