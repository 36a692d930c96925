# SPDX-License-Identifier: Apache-2.0
"""Gaps cut where another thread took charge, and what the thread in charge was doing."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.host.activity import ActivityKind, HostActivity
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, full
from profiling_lab.trace.trace import Trace

_PAUSES = (ActivityKind.GARBAGE_COLLECTION, ActivityKind.COMPILATION)


@dataclass(frozen=True, slots=True)
class _Windows:
    """Parts of gaps in which one thread was in charge; `thread` -1 after the launch."""

    gap: I32
    start_ns: I64
    end_ns: I64
    thread: I32


@dataclass(frozen=True, slots=True)
class Cut:
    """The windows in pieces, and for each piece what is known of its gap."""

    gap: I32
    start_ns: I64
    end_ns: I64
    thread: I32
    """-1 after the launch"""
    who: I32
    """row of the host's activities, -1 where the thread was in none"""
    gap_start_ns: I64
    launch: I32
    """row of the call that launched the operation behind the gap, -1 not recorded"""


def cut_gaps(trace: Trace, host: HostActivity, start_ns: I64, end_ns: I64, launch: I32) -> Cut:
    """Gaps in pieces. launch: per gap the row of the call that launched the operation behind it, or -1."""
    return _cut(_windows(trace, host, start_ns, end_ns, launch), host, start_ns, launch)


def _cut(windows: _Windows, host: HostActivity, gap_start_ns: I64, launch: I32) -> Cut:
    """Windows of a thread by what it was doing; after the launch a window is one piece."""
    at_host, after = np.flatnonzero(windows.thread >= 0), np.flatnonzero(windows.thread < 0)
    window, start_ns, end_ns, who = _analysis.cut_by_winners(
        windows.start_ns[at_host],
        windows.end_ns[at_host],
        windows.thread[at_host],
        host.start_ns,
        host.end_ns,
        host.thread,
        host.doing,
    )
    row = np.concatenate([at_host[window], after])
    gap = windows.gap[row]
    return Cut(
        gap=gap,
        start_ns=np.concatenate([start_ns, windows.start_ns[after]]),
        end_ns=np.concatenate([end_ns, windows.end_ns[after]]),
        thread=windows.thread[row],
        who=np.concatenate([who, full(len(after), -1, np.int32)]),
        gap_start_ns=gap_start_ns[gap],
        launch=launch[gap],
    )


def _windows(trace: Trace, host: HostActivity, start_ns: I64, end_ns: I64, call: I32) -> _Windows:
    """Each gap in up to three: a thread until it hands over, the launching one, and after the launch."""
    calls = trace.calls
    none = np.int64(np.iinfo(np.int64).max)
    known = call >= 0
    thread = np.append(calls.thread, np.int32(-1))[call]
    launch_start = np.where(known, np.append(calls.start_ns, none)[call], start_ns)
    launch_end = np.where(known, np.append(calls.end_ns, none)[call], start_ns)
    host_end = np.clip(launch_end, start_ns, end_ns)
    before, until = _handed_over(trace, host, call, start_ns)
    until = np.clip(until, start_ns, np.clip(launch_start, start_ns, end_ns))
    gap = np.arange(len(start_ns), dtype=np.int32)
    parts = (
        (start_ns, until, before),
        (until, host_end, thread),
        (host_end, end_ns, full(len(gap), -1, np.int32)),
    )
    kept = [end > start for start, end, _ in parts]
    return _Windows(
        np.concatenate([gap[keep] for keep in kept]),
        *(
            np.concatenate([part[column][keep] for part, keep in zip(parts, kept, strict=True)])
            for column in range(3)
        ),
    )


def _handed_over(trace: Trace, host: HostActivity, call: I32, gap_start_ns: I64) -> tuple[I32, I64]:
    """Per gap the thread that was at work before the launching one took over, and until when.

    Forward and backward run on two threads that wait for each other. A thread that makes its first call
    inside of the gap was not the one to be late before: until its own last call, and its last garbage
    collection or compilation, it was the other one. Threads that never launch (watchdogs, loaders) do not
    count. Where nothing was handed over, `until` is the start.
    """
    calls = trace.calls
    launched = trace.attribution.call
    launches = np.zeros(len(trace.source.threads.ids) + 1, dtype=bool)
    launches[calls.thread[launched[launched >= 0]]] = True
    rows = np.flatnonzero(launches[calls.thread]) if len(calls) else np.empty(0, dtype=np.intp)
    rows = rows[np.lexsort((calls.start_ns[rows], calls.process[rows]))]
    position = full(len(calls) + 1, 0)
    position[rows] = np.arange(len(rows))
    # Runs of calls of one thread; what matters is where the launch's run began, and the call before that.
    same = (calls.thread[rows][1:] == calls.thread[rows][:-1]) & (
        calls.process[rows][1:] == calls.process[rows][:-1]
    )
    run_start = np.maximum.accumulate(np.where(np.concatenate([[False], same]), 0, np.arange(len(rows))))
    thread, until = full(len(call), -1, np.int32), gap_start_ns.copy()
    known = np.flatnonzero(call >= 0)
    first = run_start[position[call[known]]]
    other = np.maximum(first - 1, 0)
    took_over = (
        (first > 0)
        & (calls.process[rows[other]] == calls.process[rows[first]])
        & (calls.start_ns[rows[first]] > gap_start_ns[known])
        & (calls.end_ns[rows[other]] > gap_start_ns[known])
    )
    at = known[took_over]
    thread[at] = calls.thread[rows[other[took_over]]]
    until[at] = calls.end_ns[rows[other[took_over]]]
    # A pause that Python or torch told of is no call.
    told = np.flatnonzero(np.isin(host.doing, _PAUSES) & (host.end_ns > host.start_ns))
    if len(told) and len(known):
        order = known[np.argsort(gap_start_ns[known], kind="stable")]
        gap = order[np.maximum(np.searchsorted(gap_start_ns[order], host.end_ns[told], "left") - 1, 0)]
        row = np.searchsorted(known, gap)
        took = (first[row] > 0) & (calls.thread[rows[other[row]]] == host.thread[told])
        took &= (host.start_ns[told] >= calls.end_ns[rows[other[row]]]) & (
            host.end_ns[told] > gap_start_ns[gap]
        )
        took &= host.end_ns[told] <= calls.start_ns[rows[first[row]]]
        thread[gap[took]] = host.thread[told[took]]
        np.maximum.at(until, gap[took], host.end_ns[told[took]])
    return thread, until
