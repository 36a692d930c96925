# SPDX-License-Identifier: Apache-2.0
"""The GPU's part of the graph: operations behind their launch, behind the one before on their stream, and
behind those of other streams that they wait for.

A kernel may begin before the one before it on its stream has ended (programmatic dependent launch). Until it
begins the time is that one's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.critical_path.calls import kinds_of_calls
from profiling_lab.analysis.critical_path.graph import OPERATION_ENDS, GraphBuilder
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.critical_path.launched import Launched
from profiling_lab.analysis.critical_path.recorder_time import RecorderTime
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import (
    I32,
    I64,
    MemoryKind,
    OperationKind,
    Operations,
    SyncKind,
    combined,
    full,
    median,
)
from profiling_lab.trace.cuda_calls import CudaCall, are_any
from profiling_lab.trace.operation_classes import OperationClass
from profiling_lab.trace.trace import Trace

_USUAL_LATENCY_NS, _USUAL_PAUSE_NS = 5_000, 1_000
"""where a recording has too few operations to tell"""
_FEW = 20
LONGEST_NS = 20_000
"""what an operation begins later than this after all that it waited for is unknown"""
_SOON_NS = 5_000
"""an operation that begins so soon after one of another stream may have waited for it"""


@dataclass(frozen=True, slots=True)
class _Edges:
    """What operations may have waited for: rows of one kind."""

    operation: I64
    source: I64
    """moment"""
    from_ns: I64
    kind: Kind | I32
    usual_ns: int | I64
    longest_ns: I64
    """what of the time behind the source has this reason at most"""
    call_ns: I64
    """the part of it inside of the launching call"""
    site: I32
    owner: I32


def add_operations(trace: Trace, builder: GraphBuilder) -> tuple[I64, I64]:
    """The moments of the operations."""
    operations = trace.operations
    return builder.spans(operations.start_ns, operations.end_ns, operations.process, OPERATION_ENDS)


def add_device(
    trace: Trace,
    builder: GraphBuilder,
    launched: Launched,
    begin: I64,
    end: I64,
    site: I32,
    call_site: I32,
    recorder: RecorderTime,
) -> None:
    """Add the operations' order. site: per operation; call_site: per call."""
    operations = trace.operations
    kind = _add_bodies(trace, builder, begin, end, site)
    before, overlaps = _before_on_stream(launched)
    from_launch = _behind_launch(trace, launched, before, call_site)
    on_stream = _behind_stream(operations, launched, np.where(overlaps, -1, before), end, site)
    still_runs = np.where(overlaps, before, -1)
    within = _within_another(operations, still_runs, begin, kind, site)
    _end_in_order(operations, builder, still_runs, end)
    on_event = _behind_events(trace, launched, end, call_site)
    found = [from_launch, on_stream, within, on_event]
    best = _ready(operations, found)
    late = (operations.start_ns - best > LONGEST_NS) & ~overlaps
    found.append(_behind_others(operations, np.flatnonzero(late), best, end, site))
    _add(operations, builder, found, begin, site, kinds_of_calls(trace), launched, recorder)


def _add_bodies(trace: Trace, builder: GraphBuilder, begin: I64, end: I64, site: I32) -> I32:
    """The kind of each."""
    operations = trace.operations
    ns = np.maximum(operations.duration_ns, 0)
    of_kind = {
        OperationKind.KERNEL: Kind.KERNEL,
        OperationKind.COPY: Kind.COPY,
        OperationKind.SET: Kind.SET,
        OperationKind.GRAPH: Kind.GRAPH,
    }
    kind = np.array([of_kind[each] for each in OperationKind], dtype=np.int32)[operations.kind]
    kind[trace.classes == OperationClass.COMMUNICATION] = Kind.COLLECTIVE
    label = builder.labels.numbers(operations.names)[operations.name]
    builder.parts(builder.edges(begin, end, ns), ns, kind, site, label)
    return np.asarray(kind, dtype=np.int32)


def _before_on_stream(launched: Launched) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Per operation the one before it on its stream (-1 none), and whether they overlap."""
    operations, order = launched.operations, launched.order
    before = full(len(operations), -1)
    same = launched.track[order[1:]] == launched.track[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    ends = np.append(operations.end_ns, 0)[before]
    return before, (before >= 0) & (ends > operations.start_ns)


def _behind_launch(trace: Trace, launched: Launched, before: I64, call_site: I32) -> _Edges:
    operations, calls = trace.operations, trace.calls
    rows = np.flatnonzero(launched.call >= 0)
    call = launched.call[rows]
    begins, returns = calls.start_ns[call], calls.end_ns[call]
    took = operations.start_ns[rows] - begins
    before_ends = np.append(operations.end_ns, np.iinfo(np.int64).min)[before[rows]]
    idle = before_ends < begins
    fits = idle & (took >= 0) & (took <= LONGEST_NS) & (operations.kind[rows] == OperationKind.KERNEL)
    usual = _median(took[fits])
    # Of a graph's nodes only the first waits for its call: the others wait for nodes.
    first_ns = full(len(calls), np.iinfo(np.int64).max)
    np.minimum.at(first_ns, call, operations.start_ns[rows])
    # A copy to pageable memory holds its call until the stream has come to it: that is no work of the call.
    waits = (operations.kind[rows] == OperationKind.COPY) & (
        operations.target_memory[rows] == MemoryKind.PAGEABLE
    )
    works_ns = np.where(waits, np.maximum(begins, before_ends), begins)
    in_call = np.clip(np.minimum(first_ns[call], returns) - works_ns, 0, None)
    return _Edges(
        operation=rows,
        source=launched.moment_of_call[call],
        from_ns=begins,
        kind=Kind.LATENCY,
        usual_ns=_USUAL_LATENCY_NS if usual is None else usual,
        longest_ns=in_call + LONGEST_NS,
        call_ns=in_call,
        site=call_site[call],
        owner=full(len(rows), -1, np.int32),
    )


def _behind_stream(
    operations: Operations,
    launched: Launched,
    before: I64,
    end: I64,
    site: I32,
) -> _Edges:
    rows = np.flatnonzero(before >= 0)
    first = before[rows]
    pause = operations.start_ns[rows] - operations.end_ns[first]
    queued = launched.launched_ns[rows] < operations.start_ns[first]
    usual = _median(pause[queued & (pause <= LONGEST_NS)])
    return _Edges(
        operation=rows,
        source=end[first],
        from_ns=operations.end_ns[first],
        kind=Kind.BETWEEN,
        usual_ns=_USUAL_PAUSE_NS if usual is None else usual,
        longest_ns=full(len(rows), LONGEST_NS),
        call_ns=np.zeros(len(rows), dtype=np.int64),
        site=site[rows],
        owner=full(len(rows), -1, np.int32),
    )


def _within_another(operations: Operations, before: I64, begin: I64, kind: I32, site: I32) -> _Edges:
    """Operations that begin while the one before still runs: some part of its time after its begin."""
    rows = np.flatnonzero(before >= 0)
    first = before[rows]
    runs_ns = operations.start_ns[rows] - operations.start_ns[first]
    return _Edges(
        operation=rows,
        source=begin[first],
        from_ns=operations.start_ns[first],
        kind=kind[first],
        usual_ns=runs_ns,
        longest_ns=runs_ns,
        call_ns=np.zeros(len(rows), dtype=np.int64),
        site=site[first],
        owner=full(len(rows), -1, np.int32),
    )


def _end_in_order(operations: Operations, builder: GraphBuilder, before: I64, end: I64) -> None:
    """What begins while the one before still runs waits for it before it ends, where that was so."""
    rows = np.flatnonzero(before >= 0)
    rows = rows[operations.end_ns[rows] >= operations.end_ns[before[rows]]]
    builder.edges(end[before[rows]], end[rows], np.zeros(len(rows), dtype=np.int64))


def _behind_events(trace: Trace, launched: Launched, end: I64, call_site: I32) -> _Edges:
    """A stream that waits for an event: its next operation follows one of another stream.

    Recordings seldom say which event. It is taken to be the one after the last operation that was launched on
    another stream before the wait and had ended when the waiting one began: of several streams the latest.
    """
    calls, operations = trace.calls, trace.operations
    waits = np.flatnonzero(are_any(calls, (CudaCall.STREAM_WAIT_EVENT,)))
    stream = _waiting_stream(trace)[waits]
    target = full(len(waits), -1)
    source, source_end = full(len(waits), -1), full(len(waits), np.iinfo(np.int64).min)
    for track, rows in launched.by_launch.items():
        mine = (stream == launched.streams[track][2]) & (calls.process[waits] == launched.streams[track][0])
        at = np.searchsorted(launched.launched_ns[rows], calls.start_ns[waits], "right")
        use = np.flatnonzero(mine & (at < len(rows)))
        target[use] = rows[at[use]]
    # Where the stream is unknown, the next launch of the thread is on it.
    unknown = np.flatnonzero((stream < 0) & (target < 0))
    target[unknown] = launched.next_of_thread(calls.thread[waits[unknown]], calls.start_ns[waits[unknown]])
    begins = np.append(operations.start_ns, np.iinfo(np.int64).min)[target]
    own_track = np.append(launched.track, -1)[target]
    for track, rows in launched.by_launch.items():
        others = (own_track >= 0) & (own_track != track)
        others &= calls.process[waits] == launched.streams[track][0]
        at = np.searchsorted(launched.launched_ns[rows], calls.start_ns[waits], "left") - 1
        # The event may be far older than the last launch: DDP waits for its buckets when it has sent all.
        ended_ns = np.maximum.accumulate(operations.end_ns[rows])
        at = np.minimum(at, np.searchsorted(ended_ns, begins, "right") - 1)
        ends = operations.end_ns[rows[np.maximum(at, 0)]]
        better = others & (at >= 0) & (ends > source_end)
        source[better], source_end[better] = rows[at[better]], ends[better]
    found = np.flatnonzero((target >= 0) & (source >= 0))
    site = call_site[waits[found]]
    return _Edges(
        operation=target[found],
        source=end[source[found]],
        from_ns=source_end[found],
        kind=Kind.EVENT_WAIT,
        usual_ns=_USUAL_PAUSE_NS,
        longest_ns=full(len(found), LONGEST_NS),
        call_ns=np.zeros(len(found), dtype=np.int64),
        site=site,
        owner=site,
    )


def _waiting_stream(trace: Trace) -> I64:
    """Per call the stream that it lets wait for an event, -1 unknown."""
    syncs, calls = trace.syncs, trace.calls
    call = _analysis.call_of(
        syncs.process, syncs.correlation, calls.process, calls.correlation, calls.start_ns
    )
    rows = np.flatnonzero((call >= 0) & (syncs.kind == SyncKind.STREAM_WAITS_EVENT))
    out = full(len(calls), -1)
    out[call[rows]] = syncs.stream[rows]
    return out


def _behind_others(operations: Operations, rows: I64, ready_ns: I64, end: I64, site: I32) -> _Edges:
    """Operations that could have begun earlier, but began as soon as another stream's had ended."""
    device, _ = combined(operations.process, operations.device)
    order = np.lexsort((operations.end_ns, device))
    # One key that sorts by device and end.
    base = int(operations.end_ns.min())
    span = int(max(operations.end_ns.max(), operations.start_ns.max())) - base + 2
    key = device[order].astype(np.int64) * span + (operations.end_ns[order] - base)
    wanted = device[rows].astype(np.int64) * span + (operations.start_ns[rows] - base)
    at = np.searchsorted(key, wanted, "right") - 1
    source = order[np.maximum(at, 0)]
    ends = operations.end_ns[source]
    fits = (at >= 0) & (device[source] == device[rows]) & (source != rows)
    fits &= (ends > ready_ns[rows]) & (operations.start_ns[rows] - ends <= _SOON_NS)
    rows, source, ends = rows[fits], source[fits], ends[fits]
    return _Edges(
        operation=rows,
        source=end[source],
        from_ns=ends,
        kind=Kind.OTHER_STREAM,
        usual_ns=_USUAL_PAUSE_NS,
        longest_ns=full(len(rows), LONGEST_NS),
        call_ns=np.zeros(len(rows), dtype=np.int64),
        site=site[rows],
        owner=full(len(rows), -1, np.int32),
    )


def _ready(operations: Operations, found: list[_Edges]) -> I64:
    """Per operation when it could have begun, by all that it waited for."""
    ready = full(len(operations), np.iinfo(np.int64).min // 2)
    for edges in found:
        fits = edges.from_ns <= operations.start_ns[edges.operation]
        np.maximum.at(ready, edges.operation[fits], (edges.from_ns + edges.call_ns)[fits])
    return ready


def _add(
    operations: Operations,
    builder: GraphBuilder,
    found: list[_Edges],
    begin: I64,
    site: I32,
    call_kind: I32,
    launched: Launched,
    recorder: RecorderTime,
) -> None:
    """What decided has all of the time behind it, others what is usual."""
    start_ns = operations.start_ns
    best = full(len(operations), np.iinfo(np.int64).min // 2)
    for edges in found:
        fits = edges.from_ns <= start_ns[edges.operation]
        np.maximum.at(best, edges.operation[fits], _usually(edges)[fits])
    for edges in found:
        took = start_ns[edges.operation] - edges.from_ns
        rows = np.flatnonzero(took >= 0)
        decided = _usually(edges)[rows] >= best[edges.operation[rows]]
        usual = np.minimum(took[rows], (_usually(edges) - edges.from_ns)[rows])
        after = np.where(decided, np.minimum(took[rows], edges.longest_ns[rows]), usual)
        row = builder.edges(edges.source[rows], begin[edges.operation[rows]], after, edges.owner[rows])
        in_call = np.minimum(edges.call_ns[rows], after)
        if edges.kind is Kind.LATENCY:
            call = launched.call[edges.operation[rows]]
            ours = np.minimum(recorder.inside_ns[call], in_call)
            builder.parts(row, ours, Kind.PROFILER, edges.site[rows], launched.label[call], start_ns=-1)
            label, kind = launched.label[call], call_kind[call]
            builder.parts(row, in_call - ours, kind, edges.site[rows], label)
        where = site[edges.operation[rows]] if edges.kind is Kind.LATENCY else edges.site[rows]
        kind = np.broadcast_to(edges.kind, len(took))[rows]
        builder.parts(row, after - in_call, kind, where, start_ns=1)


def _usually(edges: _Edges) -> I64:
    return edges.from_ns + np.maximum(edges.usual_ns, edges.call_ns)


def _median(values: I64) -> int | None:
    return int(median(values)) if len(values) >= _FEW else None
