# SPDX-License-Identifier: Apache-2.0
"""Operations by stream, in the order of their launches."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.calls import HostCalls
from profiling_lab.analysis.critical_path.graph import GraphBuilder
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, Operations, combined, full, unique
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Launched:
    """Of all operations of a trace."""

    operations: Operations
    call: I32
    """per operation the call that launched it, -1 none: of calls inside of others the outermost"""
    launched_ns: I64
    """when that call began; without one when the operation did"""
    track: I32
    """per operation a number of its stream"""
    streams: tuple[tuple[int, ...], ...]
    """by track (process, device, stream)"""
    order: I64
    """operations by track and time"""
    by_launch: dict[int, I64]
    """by track its operations in the order of their launches"""
    moment_of_call: I64
    """per call of the trace its begin, where it is in the graph"""
    label: I32
    """per call"""
    by_thread: dict[int, I64]

    def next_of_thread(self, thread: I32, time_ns: I64) -> I64:
        """The first operation that a thread launches from a moment on, -1 none."""
        out = full(len(thread), -1)
        for number in unique(thread).tolist():
            rows = self.by_thread.get(number)
            mine = np.flatnonzero(thread == number)
            if rows is not None:
                at = np.searchsorted(self.launched_ns[rows], time_ns[mine], "right")
                out[mine] = np.append(rows, -1)[at]
        return out


def launched(trace: Trace, builder: GraphBuilder, calls: HostCalls) -> Launched:
    operations, table = trace.operations, trace.calls
    call = trace.attribution.call
    known = np.flatnonzero(call >= 0)
    outer = full(len(operations), -1, np.int32)
    number = calls.number[call[known]]
    outer[known] = np.where(number >= 0, calls.rows[number], -1)
    launched_ns = np.where(outer >= 0, np.append(table.start_ns, 0)[outer], operations.start_ns)
    track, streams = combined(operations.process, operations.device, operations.stream)
    order = np.lexsort((launched_ns, operations.start_ns, track))
    by_launch = _grouped(np.lexsort((operations.start_ns, launched_ns, track)), track)
    moment = full(len(table), -1)
    moment[calls.rows] = calls.begin
    rows = known[outer[known] >= 0]
    thread = np.append(table.thread, np.int32(-1))[outer]
    return Launched(
        operations=operations,
        call=outer,
        launched_ns=launched_ns,
        track=track,
        streams=tuple(streams),
        order=order,
        by_launch=by_launch,
        moment_of_call=moment,
        label=builder.labels.numbers(table.names)[table.name],
        by_thread=_grouped(rows[np.lexsort((launched_ns[rows], thread[rows]))], thread),
    )


def _grouped(rows: I64, key: I32) -> dict[int, I64]:
    """Sorted rows by key."""
    if not len(rows):
        return {}
    keys, first = np.unique(key[rows], return_index=True)
    return dict(zip(keys.tolist(), np.split(rows, first[1:]), strict=True))
