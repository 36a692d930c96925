# SPDX-License-Identifier: Apache-2.0
"""What the GPU idled because threads of the host were held."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.host.activity import ActivityKind, host_activity
from profiling_lab.analysis.stats import grouped
from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.trace import Trace

_OTHERS = (
    ActivityKind.DATA_LOADING,
    ActivityKind.GIL_WAIT,
    ActivityKind.GARBAGE_COLLECTION,
    ActivityKind.ALLOCATOR,
    ActivityKind.START_UP,
    ActivityKind.CODE_LOADING,
    ActivityKind.COMPILATION,
    ActivityKind.PROFILER,
)
"""what the host does behind a wait for reasons of its own, of which other rules have findings"""


def idle_by_waits(
    busy: Busy,
    others: Mapping[int, Busy],
    thread: I32,
    start_ns: I64,
    end_ns: I64,
    *,
    from_the_start: bool = False,
) -> tuple[I64, int]:
    """GPU idle time of a process because these intervals blocked its threads: each, and together.
    `busy`: when they worked; `others`: from others_by_thread.

    It is the gap around the end of an interval: until the host is free again and has launched something.
    Without the interval the host would have launched earlier by its length, so that is the most it costs.
    What the host does meanwhile for other reasons (_OTHERS) does not count. `from_the_start`: all idle time
    inside of the intervals counts too.
    """
    rows, begins, until = busy.gaps_around(start_ns, end_ns)
    first, last = end_ns.copy(), end_ns.copy()
    first[rows], last[rows] = begins, until
    if from_the_start:
        first = start_ns
    each_ns = np.zeros(len(thread), dtype=np.int64)
    all_first, all_last = [], []
    for number, mine in grouped(np.arange(len(thread)), thread):
        counted = _joined(busy, others[number]) if number in others else busy
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
    """The GPU's work and the intervals of `others` between its begin and its end."""
    if not len(busy.start_ns):
        return busy
    edges = busy.start_ns[0], busy.end_ns[-1]
    starts, ends = others.start_ns.clip(*edges), others.end_ns.clip(*edges)
    return Busy.of(np.concatenate([busy.start_ns, starts]), np.concatenate([busy.end_ns, ends]))


def others_by_thread(trace: Trace) -> dict[int, Busy]:
    """Per thread what it did for reasons of its own (_OTHERS)."""
    host = host_activity(trace)
    rows = np.flatnonzero(np.isin(host.doing, _OTHERS) & (host.end_ns > host.start_ns))
    return {
        thread: Busy.of(host.start_ns[mine], host.end_ns[mine])
        for thread, mine in grouped(rows, host.thread[rows])
    }
