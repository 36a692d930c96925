# SPDX-License-Identifier: Apache-2.0
"""Where the host waits for the GPU, what of it was worth it, and what it cost.

Waits are calls that hold a thread until the GPU has got somewhere: synchronizations of an event, a stream or
a device, and copies that return only when they have, or nearly have, ended. A stream that waits for an event
holds no thread. While the GPU works the host may as well wait; what a wait costs is the idle time of the GPU
behind it, until the host, awake again, has launched something.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace.columns import I32, I64, MemoryKind, OperationKind, SyncKind, Syncs, full
from profiling_lab.trace.coverage import Coverage
from profiling_lab.trace.idle import busy_within, idle_after
from profiling_lab.trace.places import Place, call_places, covered
from profiling_lab.trace.read_syncs import read_syncs
from profiling_lab.trace.stats import Stats, StatsByKey, combined, possible
from profiling_lab.trace.trace import Trace

VALUE_BYTES = 64
"""a copy to the host of at most so many bytes reads a value: .item(), .tolist(), nonzero, printing"""
AT_ONCE_NS = 10_000
"""a wait that begins so soon after a copy of its thread waits for that copy"""
HELD_FRAC = 0.5
"""of a copy from or to pageable memory that passed inside of its call: then the call waited for it"""
STAGED_BYTES = 65536
"""copies to the GPU of at most so many bytes are taken over by the driver: their call does not wait"""

WHATS = ("value read", "copy to host", "copy to GPU", "other copy", "stream", "event", "device")
_VALUE, _TO_HOST, _TO_GPU, _OTHER_COPY, _STREAM, _EVENT, _DEVICE = range(len(WHATS))
_NAMES = (
    (_STREAM, re.compile(r"^cu(da)?StreamSynchronize$")),
    (_EVENT, re.compile(r"^cu(da)?EventSynchronize$")),
    (_DEVICE, re.compile(r"^(cuda(Device|Thread)|cuCtx)Synchronize$")),
)
_OF_KIND = {SyncKind.EVENT: _EVENT, SyncKind.STREAM: _STREAM, SyncKind.DEVICE: _DEVICE}
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
    """time in which a thread stood still: once per thread, however its waits nest"""
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


@dataclass(frozen=True, slots=True)
class _Waits:
    """All waits; `call` and `thread` are -1 where the call was not recorded."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    call: I32
    what: I32

    def __len__(self) -> int:
        return len(self.start_ns)


def syncs(trace: Trace, own: tuple[str, ...] | None = None, limit: int | None = None) -> SyncsResult:
    """Find the waits of the host and what they cost, by line.

    own: see Ownership. limit: at most so many rows.
    Raises NotEnoughDataError if neither calls nor synchronizations were recorded.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    noted = read_syncs(trace)
    if not len(trace.calls) and not len(noted):
        raise NotEnoughDataError(f"{trace.path} holds neither API calls nor synchronizations")
    own_row, coverage = covered(trace, own)
    waits = _waits(trace, noted)
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


def _waits(trace: Trace, noted: Syncs) -> _Waits:
    """From the calls and, where a synchronization has none, from its own row."""
    calls = trace.calls
    what = _by_name(trace)
    sync_call = _analysis.call_of(
        noted.process, noted.correlation, calls.process, calls.correlation, calls.start_ns
    )
    host = np.isin(noted.kind, list(_OF_KIND))
    kinds = np.array([_OF_KIND.get(SyncKind(i), -1) for i in range(len(SyncKind))], dtype=np.int32)
    found = np.flatnonzero(host & (sync_call >= 0))
    unnamed = found[what[sync_call[found]] < 0]
    what[sync_call[unnamed]] = kinds[noted.kind[unnamed]]
    _copies(trace, what)
    what[~(trace.calls_inside & possible(calls.start_ns, calls.end_ns))] = -1
    rows = _outermost(trace, np.flatnonzero(what >= 0))
    alone = np.flatnonzero(host & (sync_call < 0))
    nobody = full(len(alone), -1, np.int32)
    return _Waits(
        start_ns=np.concatenate([calls.start_ns[rows], noted.start_ns[alone]]),
        end_ns=np.concatenate([calls.end_ns[rows], noted.end_ns[alone]]),
        process=np.concatenate([calls.process[rows], noted.process[alone]]),
        thread=np.concatenate([calls.thread[rows], nobody]),
        call=np.concatenate([rows.astype(np.int32), nobody]),
        what=np.concatenate([what[rows], kinds[noted.kind[alone]]]),
    )


def _by_name(trace: Trace) -> I32:
    """Per call what it waits for by its name, -1 nothing."""
    names = trace.calls.names
    table = [next((what for what, pattern in _NAMES if pattern.search(name)), -1) for name in names]
    return np.array(table or [-1], dtype=np.int32)[trace.calls.name]


def _copies(trace: Trace, what: I32) -> None:
    """Mark the calls that wait for a copy: their own, or that of the call right before them."""
    if not len(trace.operations):
        return
    operations, calls, call = trace.operations, trace.calls, trace.attribution.call
    rows = np.flatnonzero((operations.kind == OperationKind.COPY) & (call >= 0))
    of = call[rows]
    of_copy = full(len(calls) + 1, -1, np.int32)
    of_copy[of] = _copy_kinds(trace, rows)
    # A copy held its own call up if that lasted for most of it, and if it can: it is not asynchronous.
    pageable = (operations.source_memory == MemoryKind.PAGEABLE) | (
        operations.target_memory == MemoryKind.PAGEABLE
    )
    asynchronous = np.array(["Async" in name for name in calls.names] or [False], dtype=bool)
    together = calls.end_ns[of] - np.maximum(operations.start_ns[rows], calls.start_ns[of])
    held = together >= HELD_FRAC * operations.duration_ns[rows]
    held &= pageable[rows] | ~asynchronous[calls.name[of]]
    held &= (of_copy[of] != _TO_GPU) | (operations.size_bytes[rows] > STAGED_BYTES)
    waits = np.flatnonzero(what >= 0)
    before = _call_before(trace)[waits]
    soon = calls.start_ns[waits] - np.append(calls.end_ns, 0)[before] <= AT_ONCE_NS
    copied = np.where((before >= 0) & soon, of_copy[before], -1)
    what[waits] = np.where(copied >= 0, copied, what[waits])
    what[of[held]] = of_copy[of[held]]


def _copy_kinds(trace: Trace, rows: npt.NDArray[np.intp]) -> I32:
    """What a wait for each of these copies is."""
    operations = trace.operations
    ends = (("DtoH", _TO_HOST), ("HtoD", _TO_GPU))
    table = [next((kind for end, kind in ends if n.endswith(end)), _OTHER_COPY) for n in operations.names]
    kind = np.array(table, dtype=np.int32)[operations.name[rows]]
    tiny = (kind == _TO_HOST) & (operations.size_bytes[rows] <= VALUE_BYTES)
    return np.where(tiny, _VALUE, kind).astype(np.int32)


def _call_before(trace: Trace) -> I32:
    """Per call the row of the one before it on its thread, -1 for the first."""
    calls = trace.calls
    order = np.lexsort((calls.start_ns, calls.thread))
    same = calls.thread[order[1:]] == calls.thread[order[:-1]]
    before = full(len(calls), -1, np.int32)
    before[order[1:][same]] = order[:-1][same]
    return before


def _outermost(trace: Trace, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Without the waits inside of others: a call of the runtime and the driver's that it makes are one."""
    calls = trace.calls
    kept = []
    for thread in np.unique(calls.thread[rows]).tolist():
        mine = rows[calls.thread[rows] == thread]
        mine = mine[np.lexsort((-calls.end_ns[mine], calls.start_ns[mine]))]
        latest = np.maximum.accumulate(calls.end_ns[mine])
        inner = np.zeros(len(mine), dtype=bool)
        inner[1:] = calls.end_ns[mine[1:]] <= latest[:-1]
        kept.append(mine[~inner])
    return np.sort(np.concatenate(kept)) if kept else rows


def _by_thread(waits: _Waits, key: I32, keys: int) -> I64:
    """Time waited by key: the union per thread, summed over threads."""
    track, pairs = combined(key, waits.thread)
    busy = _analysis.busy_ns(waits.start_ns, waits.end_ns, track, len(pairs))
    of = np.array([pair[0] for pair in pairs], dtype=np.int32)
    return _analysis.sum_by_key(of, busy, keys)[0]


def _host_time(waits: _Waits) -> tuple[int, int]:
    """The same for all waits, and of the thread with most."""
    track, threads = combined(waits.thread)
    busy = _analysis.busy_ns(waits.start_ns, waits.end_ns, track, len(threads))
    return int(busy.sum()), int(busy.max(initial=0))


def _threads(key: I32, thread: I32, keys: int) -> I64:
    _, pairs = combined(key, thread)
    return np.bincount(np.array([pair[0] for pair in pairs], dtype=np.int64), minlength=keys)


def _one_place(places: tuple[Place, ...], stats: Stats) -> Place:
    """Rows have one line: of its phases the first stands for all."""
    if not places:
        return Place(None, "unknown", "its call was not recorded", "", stats.total, stats.count, 1.0)
    return places[0]


def _span(trace: Trace, waits: _Waits) -> int:
    starts = [c for c in (trace.operations.start_ns, waits.start_ns) if len(c)]
    ends = [c for c in (trace.operations.end_ns, waits.end_ns) if len(c)]
    return int(max(c.max() for c in ends) - min(c.min() for c in starts)) if starts else 0


def _stream_waits(trace: Trace, noted: Syncs) -> int:
    """By the table of synchronizations, or by the calls where there is none."""
    listed = int((noted.kind == SyncKind.STREAM_WAITS_EVENT).sum())
    names = [bool(_STREAM_WAIT.search(name)) for name in trace.calls.names]
    called = np.array(names or [False], dtype=bool)[trace.calls.name] & trace.calls_inside
    return listed or int(called.sum())
