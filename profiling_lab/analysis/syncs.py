# SPDX-License-Identifier: Apache-2.0
"""Where the host waits for the GPU, what of it was worth it, and what it cost.

Waits are calls that hold a thread until the GPU has got somewhere: synchronizations of an event, a stream or
a device, and copies that return only when they have, or nearly have, ended. A stream that waits for an event
holds no thread. While the GPU works the host may as well wait; what a wait costs is the idle time of the GPU
behind it, until the host, awake again, has launched something.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.host.idle import busy_within, idle_after
from profiling_lab.analysis.host.waits import WHATS, HostWaits, host_waits
from profiling_lab.analysis.places import Place, call_places, covered
from profiling_lab.analysis.stats import Stats, StatsByKey
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, SyncKind, Syncs, combined, full
from profiling_lab.trace.trace import Trace

_STREAM_WAIT = re.compile(r"^cu(da)?StreamWaitEvent$")


@dataclass(frozen=True, slots=True)
class SyncRow:
    """Waits of one kind, by one function, in one line."""

    what: str
    """one of WHATS: what was waited for"""
    api: str
    """'' where the call was not recorded"""
    stats: Stats
    """of the time in each wait, ns"""
    host_ns: int
    """time in which a thread was blocked: once per thread, however its waits nest"""
    useful_ns: int
    """of all waits: while the GPU worked"""
    idle_ns: int
    """the GPU's idle time after them"""
    threads: int
    share_frac: float
    """of the host's waiting"""
    place: Place

    @property
    def key(self) -> str:
        return f"{self.what}/{self.api}/{self.place.key}"


@dataclass(frozen=True, slots=True)
class SyncsResult:
    """Rows by the idle time after them, then by the time waited, the largest first."""

    rows: tuple[SyncRow, ...]
    coverage: Coverage
    waits: int
    host_ns: int
    """once per thread"""
    longest_thread_ns: int
    """of the thread that waited longest"""
    useful_ns: int
    idle_ns: int
    span_ns: int
    """from the first operation or wait to the last one's end"""
    stream_waits: int
    """streams that wait for events: they are no waits of the host"""
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def syncs(trace: Trace, own: tuple[str, ...] | None = None, limit: int | None = None) -> SyncsResult:
    """Find the waits of the host and what they cost, by line.

    own: see Ownership. limit: the most rows.
    Raises NotEnoughDataError if neither calls nor synchronizations were recorded.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    noted = trace.syncs
    if not len(trace.calls) and not len(noted):
        raise NotEnoughDataError(f"{trace.path} holds neither API calls nor synchronizations")
    own_row, coverage = covered(trace, own)
    waits = host_waits(trace, noted)
    calls = trace.calls
    took_ns = waits.end_ns - waits.start_ns
    useful = busy_within(trace, waits.process, waits.start_ns, waits.end_ns)
    idle = idle_after(trace, waits.process, waits.start_ns, waits.end_ns)
    placed = call_places(trace, own_row)
    name = np.append(calls.name, np.int32(-1))[waits.call]
    line = np.append(placed.line_number, np.int32(-1))[waits.call]
    key, distinct = combined(waits.what, name, line)
    size = len(distinct)
    stats = StatsByKey.of(key, took_ns, size)
    host = _by_thread(waits, key, size)
    useful_of, _ = _analysis.sum_by_key(key, useful, size)
    idle_of, _ = _analysis.sum_by_key(key, idle, size)
    threads = _threads(key, waits.thread, size)
    of_call = full(len(calls), -1, np.int32)
    recorded = waits.call >= 0
    of_call[waits.call[recorded]] = key[recorded]
    weight = np.zeros(len(calls), dtype=np.int64)
    weight[waits.call[recorded]] = took_ns[recorded]
    ranked = sorted(range(size), key=lambda i: (-int(idle_of[i]), -int(host[i]), distinct[i]))
    shown = ranked[:limit]
    places = placed.by_key(of_call, weight, shown)
    all_host, longest = _host_time(waits)
    rows = tuple(
        SyncRow(
            what=WHATS[distinct[i][0]],
            api=calls.names[distinct[i][1]] if distinct[i][1] >= 0 else "",
            stats=stats[i],
            host_ns=int(host[i]),
            useful_ns=int(useful_of[i]),
            idle_ns=int(idle_of[i]),
            threads=int(threads[i]),
            share_frac=int(host[i]) / all_host if all_host else 0.0,
            place=_one_place(places[i], stats[i]),
        )
        for i in shown
    )
    return SyncsResult(
        rows=rows,
        coverage=coverage,
        waits=len(waits),
        host_ns=all_host,
        longest_thread_ns=longest,
        useful_ns=int(useful.sum()),
        idle_ns=int(idle.sum()),
        span_ns=_span(trace, waits),
        stream_waits=_stream_waits(trace, noted),
        total_matched=size,
    )


def _by_thread(waits: HostWaits, key: I32, keys: int) -> I64:
    """Time waited by key: the union per thread, summed over threads."""
    track, pairs = combined(key, waits.thread)
    busy = _analysis.busy_ns(waits.start_ns, waits.end_ns, track, len(pairs))
    of = np.array([pair[0] for pair in pairs], dtype=np.int32)
    return _analysis.sum_by_key(of, busy, keys)[0]


def _host_time(waits: HostWaits) -> tuple[int, int]:
    """The same for all waits, and of the thread with most."""
    track, threads = combined(waits.thread)
    busy = _analysis.busy_ns(waits.start_ns, waits.end_ns, track, len(threads))
    return int(busy.sum()), int(busy.max(initial=0))


def _threads(key: I32, thread: I32, keys: int) -> I64:
    _, pairs = combined(key, thread)
    return np.bincount(np.array([pair[0] for pair in pairs], dtype=np.int64), minlength=keys)


def _one_place(places: tuple[Place, ...], stats: Stats) -> Place:
    """Rows have one line: the first of its phases is taken for all."""
    if not places:
        return Place(None, "unknown", "its call was not recorded", "", stats.total, stats.count, 1.0)
    return places[0]


def _span(trace: Trace, waits: HostWaits) -> int:
    starts = [c for c in (trace.operations.start_ns, waits.start_ns) if len(c)]
    ends = [c for c in (trace.operations.end_ns, waits.end_ns) if len(c)]
    return int(max(c.max() for c in ends) - min(c.min() for c in starts)) if starts else 0


def _stream_waits(trace: Trace, noted: Syncs) -> int:
    """By the table of synchronizations, or by the calls where there is none."""
    listed = int((noted.kind == SyncKind.STREAM_WAITS_EVENT).sum())
    names = [bool(_STREAM_WAIT.search(name)) for name in trace.calls.names]
    called = np.array(names or [False], dtype=bool)[trace.calls.name] & trace.calls_inside
    return listed or int(called.sum())
