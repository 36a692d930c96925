# SPDX-License-Identifier: Apache-2.0
"""What things cost, in time on a clock: no moment counts twice, and none outside of the recording.

So no cost exceeds the recording, however many kernels run at the same time, GPUs work side by side, threads
wait together, or operations share one call, as all kernels of a CUDA graph do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.device_spans import recorded
from profiling_lab.analysis.host_activity import Doing, host_activity
from profiling_lab.analysis.stats import grouped
from profiling_lab.trace.columns import I32, I64

if TYPE_CHECKING:
    from profiling_lab.rules.view import View

_OTHERS = (
    Doing.DATA_LOADING,
    Doing.GIL_WAIT,
    Doing.GARBAGE_COLLECTION,
    Doing.ALLOCATOR,
    Doing.START_UP,
    Doing.CODE_LOADING,
    Doing.PROFILER,
)
"""what the host does behind a wait for reasons of its own, of which other rules have findings"""


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


def idle_by_waits(
    view: View, process: int, thread: I32, start_ns: I64, end_ns: I64, *, from_the_start: bool = False
) -> tuple[I64, int]:
    """What the GPUs of a process idled because these stretches held threads of it: each, and together.

    It is the gap around the end of a stretch: until the host, free again, has launched something. Without the
    stretch the host would have come earlier by its length, so that is the most that it costs; and what the
    host does for other reasons meanwhile (_OTHERS) is not for it. `from_the_start`: all idle time inside of
    the stretches counts too.
    """
    busy = view.processes[process]
    rows, begins, until = busy.gaps_around(start_ns, end_ns)
    first, last = end_ns.copy(), end_ns.copy()
    first[rows], last[rows] = begins, until
    if from_the_start:
        first = start_ns
    each_ns = np.zeros(len(thread), dtype=np.int64)
    all_first, all_last = [], []
    for number, mine in grouped(np.arange(len(thread)), thread):
        others = view.host_others(number)
        counted = busy if others is None else _joined(busy, others)
        idle_ns = counted.idle_within(first[mine], last[mine])
        each_ns[mine] = np.minimum(idle_ns, end_ns[mine] - start_ns[mine])
        all_first.append(first[mine])
        all_last.append(last[mine])
    if not all_first:
        return each_ns, 0
    together = Busy.of(np.concatenate(all_first), np.concatenate(all_last))
    idle = int(busy.idle_within(together.start_ns, together.end_ns).sum())
    return each_ns, min(int(each_ns.sum()), idle)


def _joined(busy: Busy, others: Busy) -> Busy:
    """The GPU's work and the stretches of `others` between its begin and its end."""
    if not len(busy.start_ns):
        return busy
    edges = busy.start_ns[0], busy.end_ns[-1]
    starts, ends = others.start_ns.clip(*edges), others.end_ns.clip(*edges)
    return Busy.of(np.concatenate([busy.start_ns, starts]), np.concatenate([busy.end_ns, ends]))


def others_by_thread(view: View) -> dict[int, Busy]:
    """Per thread what it did for reasons of its own (_OTHERS)."""
    host = host_activity(view.trace)
    rows = np.flatnonzero(np.isin(host.doing, _OTHERS) & (host.end_ns > host.start_ns))
    return {
        thread: Busy.of(host.start_ns[mine], host.end_ns[mine])
        for thread, mine in grouped(rows, host.thread[rows])
    }
