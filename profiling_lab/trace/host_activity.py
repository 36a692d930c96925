# SPDX-License-Identifier: Apache-2.0
"""What the threads of the host were doing, as far as a trace tells: calls, ranges, blocking calls of the
system, and time that CUDA or the profiler took for itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.columns import I32, I64, Calls, Ranges, dense, full
from profiling_lab.trace.sqlite_source import SqliteSource
from profiling_lab.trace.trace import Trace


class Doing(IntEnum):
    """Kinds of activity, so ordered that of two at one moment the greater one explains more."""

    RANGE = 0
    SYSTEM_CALL = 1
    GARBAGE_COLLECTION = 2
    GIL_WAIT = 3
    DATA_LOADING = 4
    CUDA_CALL = 5
    WAIT = 6
    ALLOCATOR = 7
    CODE_LOADING = 8
    QUEUE_FULL = 9
    PROFILER = 10


_CALLS = (
    (Doing.WAIT, re.compile(r"Synchronize$|^cudaMemcpy$|^cuMemcpy(HtoD|DtoH|DtoD)?$")),
    (
        Doing.ALLOCATOR,
        re.compile(
            r"^cuda(Malloc|Free|HostAlloc|HostRegister|HostUnregister)|^cuMem(Alloc|Free|Host|Create|Map)"
        ),
    ),
    (
        Doing.CODE_LOADING,
        re.compile(r"^cu(da)?(Module|Library|Link)(Load|Create|Add|Complete|Get)|^cuKernelGet"),
    ),
)
_RANGES = (
    (Doing.DATA_LOADING, re.compile(r"DataLoader")),
    (Doing.GIL_WAIT, re.compile(r"(?i)wait\w* (for |on )?(the )?GIL\b")),
    (Doing.GARBAGE_COLLECTION, re.compile(r"(?i)^(gc\b|garbage[ _]collect)")),
)
# CUPTI's overhead types; what is not here is unknown.
_OVERHEADS = {
    2: Doing.CODE_LOADING,  # driver JIT compiler
    3: Doing.PROFILER,  # buffer flush
    4: Doing.PROFILER,  # instrumentation
    5: Doing.PROFILER,  # resource
    6: Doing.CODE_LOADING,  # runtime module loading
    7: Doing.CODE_LOADING,  # lazy function loading
    8: Doing.QUEUE_FULL,  # command buffer full
}
# Polls of watchdogs: they neither launch nor hold up anything.
POLLS = re.compile(r"^cu(da)?(Event|Stream)Query$")


@dataclass(frozen=True, slots=True)
class HostActivity:
    """One row per activity of a thread; they need not nest."""

    start_ns: I64
    end_ns: I64
    thread: I32
    doing: I32
    name: I32
    """row of `names`"""
    call: I32
    """row of the calls, -1 for what is none"""
    range: I32
    """row of the ranges, -1 for what is none"""
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


def host_activity(trace: Trace) -> HostActivity:
    """All activities of all threads, as far as they lie between the first and the last GPU operation."""
    first, last = trace.operations.start_ns.min(), trace.operations.end_ns.max()
    calls, ranges = trace.calls, trace.ranges
    kept = np.flatnonzero(~np.array([bool(POLLS.search(n)) for n in calls.names] or [False])[calls.name])
    tables = [_system_calls(trace), *(_overheads(trace, table) for table in _OVERHEAD_TABLES)]
    names = [*calls.names, *ranges.names]
    offsets = []
    for table in tables:
        offsets.append(len(names))
        names += table.names
    number_of_tables = sum(len(table.start_ns) for table in tables)
    return HostActivity(
        start_ns=np.concatenate([calls.start_ns[kept], ranges.start_ns, *(t.start_ns for t in tables)]).clip(
            first, last
        ),
        end_ns=np.concatenate([calls.end_ns[kept], ranges.end_ns, *(t.end_ns for t in tables)]).clip(
            first, last
        ),
        thread=np.concatenate([calls.thread[kept], ranges.thread, *(t.thread for t in tables)]),
        doing=np.concatenate([call_kinds(calls)[kept], _range_kinds(ranges), *(t.doing for t in tables)]),
        name=np.concatenate(
            [
                calls.name[kept],
                ranges.name + np.int32(len(calls.names)),
                *(t.name + np.int32(at) for t, at in zip(tables, offsets, strict=True)),
            ]
        ),
        call=np.concatenate([kept.astype(np.int32), full(len(ranges) + number_of_tables, -1, np.int32)]),
        range=np.concatenate(
            [
                full(len(kept), -1, np.int32),
                np.arange(len(ranges), dtype=np.int32),
                full(number_of_tables, -1, np.int32),
            ]
        ),
        names=tuple(names),
    )


def call_kinds(calls: Calls) -> I32:
    """What each call is: a wait, an allocation, the loading of code, or any other CUDA call."""
    return _kinds(calls.names, calls.name, _CALLS, Doing.CUDA_CALL)


def _range_kinds(ranges: Ranges) -> I32:
    return _kinds(ranges.names, ranges.name, _RANGES, Doing.RANGE)


def _kinds(
    names: tuple[str, ...], name: I32, patterns: tuple[tuple[Doing, re.Pattern[str]], ...], other: Doing
) -> I32:
    table = [next((int(doing) for doing, p in patterns if p.search(text)), int(other)) for text in names]
    return np.array(table or [0], dtype=np.int32)[name]


@dataclass(frozen=True, slots=True)
class _Table:
    start_ns: I64
    end_ns: I64
    thread: I32
    doing: I32
    name: I32
    names: tuple[str, ...]


_OVERHEAD_TABLES = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")


def _rows(trace: Trace, table: str, more: dict[str, int | str]) -> tuple[dict[str, I64], SqliteSource | None]:
    wanted: dict[str, int | str] = {"start": 0, "end": 0, "globalTid": 0, "nameId": 0, **more}
    if isinstance(trace.source, SqliteSource) and (found := trace.file.newest(table)):
        return trace.file.select(found, wanted), trace.source
    return {name: np.empty(0, dtype=np.int64) for name in wanted}, None


def _named(
    rows: dict[str, I64], source: SqliteSource | None, doing: I32, keep: npt.NDArray[np.bool_]
) -> _Table:
    name, ids = dense(rows["nameId"][keep])
    return _Table(
        rows["start"][keep],
        np.maximum(rows["start"], rows["end"])[keep],
        source.threads.number(rows["globalTid"][keep]) if source else full(0, 0, np.int32),
        doing[keep],
        name,
        tuple(source.strings[i] for i in ids.tolist()) if source else (),
    )


def _system_calls(trace: Trace) -> _Table:
    rows, source = _rows(trace, "OSRT_API", {})
    size = len(rows["start"])
    return _named(rows, source, full(size, Doing.SYSTEM_CALL, np.int32), np.ones(size, dtype=bool))


def _overheads(trace: Trace, table: str) -> _Table:
    rows, source = _rows(trace, table, {"overheadType": 0})
    known = np.array([_OVERHEADS.get(i, -1) for i in range(max(_OVERHEADS) + 1)], dtype=np.int32)
    kind = rows["overheadType"]
    possible = (kind >= 0) & (kind < len(known))
    doing = known[np.where(possible, kind, 0)]
    return _named(rows, source, doing, doing >= 0)
