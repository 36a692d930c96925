# SPDX-License-Identifier: Apache-2.0
"""Which calls hold a thread of the host until the GPU has got somewhere, and what they wait for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.stats import possible
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, MemoryKind, OperationKind, SyncKind, Syncs, full, unique
from profiling_lab.trace.cuda_calls import CudaCall, cuda_calls
from profiling_lab.trace.trace import Trace

VALUE_BYTES = 64
"""a copy to the host of at most this size reads a value: .item(), .tolist(), nonzero, printing"""
AT_ONCE_NS = 10_000
"""a wait that begins so soon after a copy of its thread waits for that copy; from the same Python stack it
does so however late it begins, for a profiler may take its time between the two"""
HELD_FRAC = 0.5
"""of a copy from or to pageable memory that passed inside of its call: then the call waited for it"""
STAGED_BYTES = 65536
"""copies to the GPU of at most this size are staged by the driver: their call does not wait"""

WHATS = ("value read", "copy to host", "copy to GPU", "other copy", "stream", "event", "device")
_VALUE, _TO_HOST, _TO_GPU, _OTHER_COPY, _STREAM, _EVENT, _DEVICE = range(len(WHATS))
_OF_CALL = {CudaCall.STREAM_SYNC: _STREAM, CudaCall.EVENT_SYNC: _EVENT, CudaCall.DEVICE_SYNC: _DEVICE}
_OF_KIND = {SyncKind.EVENT: _EVENT, SyncKind.STREAM: _STREAM, SyncKind.DEVICE: _DEVICE}


@dataclass(frozen=True, slots=True)
class HostWaits:
    """All waits; `call` and `thread` are -1 where the call was not recorded."""

    start_ns: I64
    end_ns: I64
    process: I32
    thread: I32
    call: I32
    what: I32
    """row of WHATS"""

    def __len__(self) -> int:
        return len(self.start_ns)


def host_waits(trace: Trace, noted: Syncs) -> HostWaits:
    """All waits of the window: calls and, where one of `noted` has none, that synchronization."""
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
    unknown = full(len(alone), -1, np.int32)
    return HostWaits(
        start_ns=np.concatenate([calls.start_ns[rows], noted.start_ns[alone]]),
        end_ns=np.concatenate([calls.end_ns[rows], noted.end_ns[alone]]),
        process=np.concatenate([calls.process[rows], noted.process[alone]]),
        thread=np.concatenate([calls.thread[rows], unknown]),
        call=np.concatenate([rows.astype(np.int32), unknown]),
        what=np.concatenate([what[rows], kinds[noted.kind[alone]]]),
    )


def _by_name(trace: Trace) -> I32:
    """Per call what it waits for by its name, -1 nothing."""
    table = np.array([_OF_CALL.get(kind, -1) for kind in CudaCall], dtype=np.int32)
    return np.asarray(table[cuda_calls(trace.calls)], dtype=np.int32)


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
    stack = calls.stack[waits]
    soon |= (stack > 0) & (stack == np.append(calls.stack, 0)[before])
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
    for thread in unique(calls.thread[rows]).tolist():
        mine = rows[calls.thread[rows] == thread]
        mine = mine[np.lexsort((-calls.end_ns[mine], calls.start_ns[mine]))]
        latest = np.maximum.accumulate(calls.end_ns[mine])
        inner = np.zeros(len(mine), dtype=bool)
        inner[1:] = calls.end_ns[mine[1:]] <= latest[:-1]
        kept.append(mine[~inner])
    return np.sort(np.concatenate(kept)) if kept else rows
