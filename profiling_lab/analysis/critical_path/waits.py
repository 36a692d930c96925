# SPDX-License-Identifier: Apache-2.0
"""Calls that the GPU held: the host waited for an operation, or for room in the launch queue."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.critical_path.calls import HostCalls
from profiling_lab.analysis.critical_path.graph import GraphBuilder
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.critical_path.launched import Launched
from profiling_lab.analysis.host.blocking_launches import blocking_launches
from profiling_lab.analysis.host.waits import host_waits
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, U8, OverheadKind, SyncKind, full, median, unique
from profiling_lab.trace.cuda_calls import CudaCall, cuda_calls
from profiling_lab.trace.trace import Trace

_BLEED_NS = 1_000
"""clocks of host and GPU are aligned no better than this"""
_RETURN_NS = 50_000
"""a wait that returns later than this after the operation has a reason that is unknown"""
_USUAL_RETURN_NS, _USUAL_LAUNCH_NS = 10_000, 5_000
"""where a recording has too few to tell"""
_FEW = 20
_FULL_NS, _MANY = 20_000, 500
"""a launch that takes longer, with at least this number of operations queued, waits for room in the queue"""
_BUSY_FRAC = 0.8
"""of a graph's launch, how long its own nodes must run for it to have waited for them"""
_DRAINS_NS = 50_000
"""a call that frees memory for longer, and returns when the GPU has done all, waits for it"""
_QUEUES = (CudaCall.LAUNCH, CudaCall.GRAPH_LAUNCH, CudaCall.COPY, CudaCall.SET)
_MAY_DRAIN = (CudaCall.DEVICE_MEMORY, CudaCall.UNMAP_MEMORY, CudaCall.PINNED_MEMORY)
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class BlockedCalls:
    """Calls that the GPU held."""

    own_ns: I64
    """per call in the graph the time that it takes by itself, -1 for one that was not held"""


class _Operations:
    """The operations of a process by end and by launch."""

    def __init__(self, launched: Launched, process: int) -> None:
        operations = launched.operations
        rows = np.flatnonzero(operations.process == process)
        self._by_end = rows[np.argsort(operations.end_ns[rows], kind="stable")]
        self._end_ns = operations.end_ns[self._by_end]
        self._launched_ns = launched.launched_ns[self._by_end]
        by_launch = rows[np.argsort(launched.launched_ns[rows], kind="stable")]
        self._in_order_ns = launched.launched_ns[by_launch]
        ends = operations.end_ns[by_launch]
        highest = np.maximum.accumulate(ends) if len(ends) else ends
        newest = np.where(ends == highest, np.arange(len(ends)), 0)
        self._last = by_launch[np.maximum.accumulate(newest)] if len(ends) else by_launch

    def ended_last(self, by_ns: I64, launched_by_ns: I64) -> I64:
        """The operation that ended last by a moment, of those launched by another moment; -1 none."""
        out = full(len(by_ns), -1)
        at = np.searchsorted(self._end_ns, by_ns, "right") - 1
        for _ in range(8):  # those launched later seldom end earlier
            left = np.flatnonzero((out < 0) & (at >= 0))
            fits = self._launched_ns[at[left]] <= launched_by_ns[left]
            out[left[fits]] = self._by_end[at[left[fits]]]
            at = at - 1
        return out

    def to_end_last(self, launched_by_ns: I64) -> I64:
        """The operation that ends last of all launched by a moment, -1 none."""
        at = np.searchsorted(self._in_order_ns, launched_by_ns, "right")
        return np.append(self._last, -1)[at - 1] if len(self._last) else full(len(at), -1)

    def queued(self, at_ns: I64) -> I64:
        """How many are launched and have not ended."""
        launched = np.searchsorted(self._in_order_ns, at_ns, "left")
        return np.asarray(launched - np.searchsorted(self._end_ns, at_ns, "right"), dtype=np.int64)


def add_waits(
    trace: Trace, builder: GraphBuilder, calls: HostCalls, launched: Launched, end: I64, site: I32
) -> BlockedCalls:
    """Add what the calls waited for. end: per operation the moment of its end; site: per call of a trace."""
    table = trace.calls
    start_ns, end_ns = table.start_ns[calls.rows], table.end_ns[calls.rows]
    process = table.process[calls.rows]
    own_ns = full(len(calls.rows), -1)
    waits = host_waits(trace, trace.syncs)
    rows = unique(calls.number[waits.call[waits.call >= 0]])
    waiting = np.zeros(len(calls.rows), dtype=bool)
    waiting[rows[rows >= 0]] = True
    # One that copies pageable memory itself may return while the GPU still writes: it waited for nothing.
    still = np.flatnonzero(launched.call >= 0)
    still = still[launched.operations.end_ns[still] > table.end_ns[launched.call[still]] + _BLEED_NS]
    waiting[calls.number[launched.call[still]]] = False
    kind_of = cuda_calls(table)[calls.rows]
    took_ns = end_ns - start_ns
    drains = np.isin(kind_of, _MAY_DRAIN) & ~waiting & (took_ns > _DRAINS_NS)
    queues = np.isin(kind_of, _QUEUES) & ~waiting
    label = builder.labels.numbers(table.names)[table.name[calls.rows]]
    returns = _Returns(launched, builder, calls, end, site[calls.rows], label, start_ns, end_ns, own_ns)
    stream = _synced_stream(trace)[calls.rows]
    by_process = {number: _Operations(launched, number) for number in unique(process).tolist()}
    is_full = queues & (took_ns > _FULL_NS)
    many = np.zeros(len(calls.rows), dtype=bool)
    for number, of in by_process.items():
        mine = np.flatnonzero(is_full & (process == number))
        many[mine] = of.queued(start_ns[mine]) >= _MANY
    is_full &= many | _noted_full(trace, calls) | _feeds_graph(launched, calls, kind_of, start_ns, end_ns)
    usual_ns = _usual_launch(took_ns[queues & ~is_full])
    for number, of in by_process.items():
        mine = process == number
        row = np.flatnonzero(waiting & mine)
        target = of.ended_last(end_ns[row] + _BLEED_NS, start_ns[row])
        known = _last_on_stream(launched, number, stream[row], start_ns[row])
        ends = np.append(launched.operations.end_ns, _NEVER)
        target = np.where((known >= 0) & (ends[known] <= end_ns[row] + _BLEED_NS), known, target)
        returns.add(row, target, Kind.WAIT)
        row = np.flatnonzero(drains & mine)
        target = of.to_end_last(start_ns[row])
        fits = (ends[target] > start_ns[row] + _FULL_NS) & (ends[target] <= end_ns[row])
        returns.add(row[fits], target[fits], Kind.WAIT, longest_ns=None)
        row = np.flatnonzero(is_full & mine)
        returns.add(row, of.ended_last(end_ns[row], start_ns[row]), Kind.QUEUE_FULL, usual_ns)
    kernels = blocking_launches(trace)
    kernels = kernels[launched.call[kernels] >= 0]
    row = np.asarray(calls.number[launched.call[kernels]], dtype=np.intp)
    returns.add(row, kernels, Kind.WAIT, launched.operations.start_ns[kernels] - start_ns[row])
    return BlockedCalls(own_ns)


@dataclass(frozen=True, slots=True)
class _Returns:
    """Adds dependencies of the ends of calls on the ends of operations. Columns are per call in the graph."""

    launched: Launched
    builder: GraphBuilder
    calls: HostCalls
    end: I64
    site: I32
    label: I32
    start_ns: I64
    end_ns: I64
    own_ns: I64

    def add(
        self,
        row: npt.NDArray[np.intp],
        target: I64,
        kind: Kind,
        itself_ns: int | I64 | None = None,
        longest_ns: int | None = _RETURN_NS,
    ) -> None:
        """itself_ns: what a call takes by itself, by default the time of its return."""
        row, target = row[target >= 0], target[target >= 0]
        ends = self.launched.operations.end_ns[target]
        start_ns, end_ns = self.start_ns[row], self.end_ns[row]
        really = (ends > start_ns) & (ends <= end_ns)
        after = end_ns - ends
        if longest_ns is not None:
            after = np.minimum(after, longest_ns)
        usual = int(median(after[really])) if really.sum() >= _FEW else _USUAL_RETURN_NS
        after = np.where(really, after, np.minimum(after, usual))
        held = np.flatnonzero(really)
        own = after[held] if itself_ns is None else np.minimum(itself_ns, end_ns - start_ns)[held]
        self.own_ns[row[held]] = own
        row, target, after = row[ends <= end_ns], target[ends <= end_ns], after[ends <= end_ns]
        site = self.site[row]
        edge = self.builder.edges(self.end[target], self.calls.end[row], after, site)
        self.builder.parts(edge, after, kind, site, self.label[row])


def _feeds_graph(
    launched: Launched, calls: HostCalls, kind_of: U8, start_ns: I64, end_ns: I64
) -> npt.NDArray[np.bool_]:
    """Per call in the graph whether it launched a graph that has more nodes than the queue has room for: it
    returns as the last ones begin, and the GPU was busy with its nodes all the while.
    """
    operations = launched.operations
    number = np.append(calls.number, -1)[launched.call]
    rows = np.flatnonzero((number >= 0) & (kind_of[number] == CudaCall.GRAPH_LAUNCH))
    in_call = np.minimum(operations.end_ns[rows], end_ns[number[rows]]) - operations.start_ns[rows]
    busy_ns = np.bincount(number[rows], weights=np.maximum(in_call, 0), minlength=len(start_ns))
    return np.asarray((busy_ns >= _BUSY_FRAC * (end_ns - start_ns)) & (kind_of == CudaCall.GRAPH_LAUNCH))


def _usual_launch(took_ns: I64) -> int:
    return int(median(took_ns)) if len(took_ns) >= _FEW else _USUAL_LAUNCH_NS


def _synced_stream(trace: Trace) -> I64:
    """Per call the stream that it waits for, -1 unknown or several."""
    syncs, table = trace.syncs, trace.calls
    call = _analysis.call_of(
        syncs.process, syncs.correlation, table.process, table.correlation, table.start_ns
    )
    rows = np.flatnonzero((call >= 0) & (syncs.kind == SyncKind.STREAM))
    out = full(len(table), -1)
    out[call[rows]] = syncs.stream[rows]
    return out


def _last_on_stream(launched: Launched, process: int, stream: I64, by_ns: I64) -> I64:
    """The last operation launched on a stream by a moment, -1 none."""
    out = full(len(stream), -1)
    for track, rows in launched.by_launch.items():
        if launched.streams[track][0] != process:
            continue
        mine = np.flatnonzero(stream == launched.streams[track][2])
        at = np.searchsorted(launched.launched_ns[rows], by_ns[mine], "right") - 1
        out[mine[at >= 0]] = rows[at[at >= 0]]
    return out


def _noted_full(trace: Trace, calls: HostCalls) -> npt.NDArray[np.bool_]:
    """Per call in the graph whether the driver noted that the queue was full in it."""
    overheads, table = trace.overheads, trace.calls
    out = np.zeros(len(calls.rows), dtype=bool)
    noted = np.flatnonzero(overheads.kind == OverheadKind.COMMAND_BUFFER_FULL)
    for thread in unique(overheads.thread[noted]).tolist():
        mine = np.flatnonzero(table.thread[calls.rows] == thread)
        middle = (overheads.start_ns + overheads.end_ns)[noted[overheads.thread[noted] == thread]] // 2
        at = np.searchsorted(table.start_ns[calls.rows[mine]], middle, "right") - 1
        inside = (
            at[(at >= 0) & (middle <= table.end_ns[calls.rows[mine[np.maximum(at, 0)]]])]
            if len(mine)
            else at[:0]
        )
        out[mine[inside]] = True
    return out
