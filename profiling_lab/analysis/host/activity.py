# SPDX-License-Identifier: Apache-2.0
"""What the threads of the host were doing, as far as a trace shows: calls, ranges, blocking calls of the
system, and time that CUDA or the profiler took for itself.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64, Calls, OperationKind, OverheadKind, Ranges, full, unique
from profiling_lab.trace.cuda_calls import SYNCS, CudaCall, cuda_calls
from profiling_lab.trace.extras import GIL_WAIT, HostSpans
from profiling_lab.trace.trace import Trace


class ActivityKind(IntEnum):
    """Kinds of activity, so ordered that of two at one moment the greater one explains more."""

    RANGE = 0
    OFF_CPU = 1
    SYSTEM_CALL = 2
    GARBAGE_COLLECTION = 3
    GIL_WAIT = 4
    DATA_LOADING = 5
    CUDA_CALL = 6
    WAIT = 7
    ALLOCATOR = 8
    START_UP = 9
    CODE_LOADING = 10
    QUEUE_FULL = 11
    COMPILATION = 12
    PROFILER = 13


_CALLS = {
    **dict.fromkeys((*SYNCS, CudaCall.BLOCKING_COPY), ActivityKind.WAIT),
    CudaCall.DEVICE_MEMORY: ActivityKind.ALLOCATOR,
    CudaCall.POOL_MEMORY: ActivityKind.ALLOCATOR,
    CudaCall.PINNED_MEMORY: ActivityKind.ALLOCATOR,
    CudaCall.REGISTER_MEMORY: ActivityKind.ALLOCATOR,
    CudaCall.LOAD_CODE: ActivityKind.CODE_LOADING,
}
_RANGES = (
    (ActivityKind.DATA_LOADING, re.compile(r"DataLoader")),
    (ActivityKind.GIL_WAIT, GIL_WAIT),
    (ActivityKind.GARBAGE_COLLECTION, re.compile(r"(?i)^(gc\b|garbage[ _]collect)")),
    (ActivityKind.COMPILATION, re.compile(r"^torch\.compile")),
)
# What is not here is unknown.
_OVERHEADS = {
    OverheadKind.JIT_COMPILER: ActivityKind.CODE_LOADING,
    OverheadKind.BUFFER_FLUSH: ActivityKind.PROFILER,
    OverheadKind.INSTRUMENTATION: ActivityKind.PROFILER,
    OverheadKind.RESOURCE: ActivityKind.PROFILER,
    OverheadKind.MODULE_LOADING: ActivityKind.CODE_LOADING,
    OverheadKind.LAZY_FUNCTION_LOADING: ActivityKind.CODE_LOADING,
    OverheadKind.COMMAND_BUFFER_FULL: ActivityKind.QUEUE_FULL,
    OverheadKind.PROFILER: ActivityKind.PROFILER,
}
# These make a context, if there is none.
_MAKES_A_CONTEXT = re.compile(
    r"^cu(Init|DevicePrimaryCtx\w*|CtxCreate\w*)$|^(cuda|hip)(Init|InitDevice|SetDevice)$"
)
LONG_START_NS = 10_000_000
"""the first call that allocates takes so long where it is not memory that it waits for: it makes a context,
or is a library's own (cuBLAS, cuDNN); an allocation takes a fraction of it"""
_OVERHEAD_NAMES = tuple(kind.name.lower().replace("_", " ") for kind in OverheadKind)


@dataclass(frozen=True, slots=True)
class HostActivity:
    """One row per activity of a thread; they need not nest."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    doing: I32
    name: I32
    """row of `names`"""
    call: I32
    """row of the calls, -1 for what is none"""
    range: I32
    """row of the ranges, -1 for what is none"""
    stack: I32
    """row of the trace's stacks, where the activity has one of its own"""
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


def host_activity(trace: Trace, span: tuple[int, int] | None = None) -> HostActivity:
    """All activities of all threads, as far as they lie in `span`: else between the first and the last GPU
    operation.
    """
    system_calls = _spans(trace.source.system_calls(), ActivityKind.SYSTEM_CALL)
    off_cpu = _spans(trace.source.off_cpu(), ActivityKind.OFF_CPU)
    events = trace.source.host_events()
    told = replace(_spans(events, ActivityKind.RANGE), doing=_range_kinds(events))
    tables = (_calls(trace), _ranges(trace), system_calls, off_cpu, told, _overheads(trace))
    names: list[str] = []
    offsets = []
    for table in tables:
        offsets.append(len(names))
        names += table.names
    calls, ranges = len(tables[0].rows), len(tables[1].rows)
    others = sum(len(table.rows) for table in tables[2:])
    none = np.int32(-1)

    def column(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(table, name) for table in tables])

    first, last = span or (trace.operations.start_ns.min(), trace.operations.end_ns.max())
    return HostActivity(
        start_ns=column("start_ns").clip(first, last),
        end_ns=column("end_ns").clip(first, last),
        process=column("process"),
        thread=column("thread"),
        doing=column("doing"),
        name=np.concatenate([t.name + np.int32(at) for t, at in zip(tables, offsets, strict=True)]),
        call=np.concatenate([tables[0].rows, np.full(ranges + others, none)]),
        range=np.concatenate([np.full(calls, none), tables[1].rows, np.full(others, none)]),
        stack=np.concatenate([events.stack if t is told else full(len(t.rows), 0, np.int32) for t in tables]),
        names=tuple(names),
    )


def call_kinds(calls: Calls) -> I32:
    """What each call is: a wait, an allocation, the loading of code, or any other CUDA call."""
    table = np.array([_CALLS.get(kind, ActivityKind.CUDA_CALL) for kind in CudaCall], dtype=np.int32)
    return np.asarray(table[cuda_calls(calls)], dtype=np.int32)


def _range_kinds(ranges: Ranges | HostSpans) -> I32:
    table = [
        next((int(doing) for doing, p in _RANGES if p.search(name)), int(ActivityKind.RANGE))
        for name in ranges.names
    ]
    return np.array(table or [0], dtype=np.int32)[ranges.name]


@dataclass(frozen=True, slots=True)
class _Table:
    """Activities of one source."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    doing: I32
    name: I32
    names: tuple[str, ...]
    rows: I32
    """of the table they are from"""


def _calls(trace: Trace) -> _Table:
    calls = trace.calls
    # Polls are of watchdogs: they neither launch nor hold up anything.
    rows = np.flatnonzero(cuda_calls(calls) != CudaCall.POLL).astype(np.int32)
    doing = call_kinds(calls)
    doing[_starts_up(trace, doing)] = ActivityKind.START_UP
    return _Table(
        start_ns=calls.start_ns[rows],
        end_ns=calls.end_ns[rows],
        process=calls.process[rows],
        thread=calls.thread[rows],
        doing=doing[rows],
        name=calls.name[rows],
        names=calls.names,
        rows=rows,
    )


def _starts_up(trace: Trace, doing: I32) -> npt.NDArray[np.bool_]:
    """Per call, whether CUDA starts up in it, which it does once: what makes a context, and what allocates
    before the process has launched any kernel, or first of all calls of its name, and for long.
    """
    calls = trace.calls
    makes = np.array([bool(_MAKES_A_CONTEXT.search(name)) for name in calls.names] or [False])
    out: npt.NDArray[np.bool_] = makes[calls.name]
    launched = np.zeros(len(calls) + 1, dtype=bool)
    launched[trace.attribution.call[trace.operations.kind == OperationKind.KERNEL]] = True
    allocates = doing == ActivityKind.ALLOCATOR
    for process in unique(calls.process[allocates]).tolist():
        mine = np.flatnonzero(allocates & (calls.process == process))
        launches = calls.start_ns[launched[:-1] & (calls.process == process)]
        if len(launches):
            out[mine[calls.start_ns[mine] < launches.min()]] = True
        mine = mine[np.argsort(calls.start_ns[mine], kind="stable")]
        _, first = np.unique(calls.name[mine], return_index=True)
        first = mine[first]
        out[first[calls.end_ns[first] - calls.start_ns[first] >= LONG_START_NS]] = True
    return out


def _ranges(trace: Trace) -> _Table:
    ranges = trace.ranges
    return _Table(
        start_ns=ranges.start_ns,
        end_ns=ranges.end_ns,
        process=ranges.process,
        thread=ranges.thread,
        doing=_range_kinds(ranges),
        name=ranges.name,
        names=ranges.names,
        rows=np.arange(len(ranges), dtype=np.int32),
    )


def _spans(spans: HostSpans, doing: ActivityKind) -> _Table:
    return _Table(
        start_ns=spans.start_ns,
        end_ns=spans.end_ns,
        process=spans.process,
        thread=spans.thread,
        doing=full(len(spans.thread), doing, np.int32),
        name=spans.name,
        names=spans.names,
        rows=np.arange(len(spans.thread), dtype=np.int32),
    )


def _overheads(trace: Trace) -> _Table:
    overheads = trace.overheads
    known = np.array([_OVERHEADS.get(kind, -1) for kind in OverheadKind], dtype=np.int32)[overheads.kind]
    rows = np.flatnonzero(known >= 0).astype(np.int32)
    return _Table(
        start_ns=overheads.start_ns[rows],
        end_ns=overheads.end_ns[rows],
        process=overheads.process[rows],
        thread=overheads.thread[rows],
        doing=known[rows],
        name=overheads.kind[rows].astype(np.int32),
        names=_OVERHEAD_NAMES,
        rows=rows,
    )
