# SPDX-License-Identifier: Apache-2.0
"""What a program would win without some of its work: the graph of its steps again, with that work shorter or
gone.

Work of the GPU that is shorter wins nothing where the GPU waits for the host, and a wait that is gone wins
nothing where the host is slower than the GPU anyway. Both are decided by the graph, in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.critical_path.build import Moments, build_with_moments
from profiling_lab.analysis.critical_path.graph import Graph
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.critical_path.recorder_time import is_noted
from profiling_lab.analysis.critical_path.what_if import changed
from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.spans import Spans
from profiling_lab.trace.step_windows import StepWindows
from profiling_lab.trace.trace import Trace

F64 = npt.NDArray[np.float64]

_GONE_NS = -(1 << 60)
_ON_THE_WAY_NS = 500_000
"""the host's way from one launch to the next; what takes longer is work of its own"""
_ENOUGH_STEPS = 3
_PAUSES = (Kind.LATENCY, Kind.BETWEEN)
_NO_ROWS = np.empty(0, dtype=np.int64)
_NO_FRACTIONS = np.empty(0, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class HostWork:
    """What the host did at some times: all of it between the two calls around each, or in the call."""

    spans: Spans
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Saving:
    """What a remedy takes away. Rows are those of the trace that it is computed for."""

    operations: I64 = field(default_factory=lambda: _NO_ROWS)
    left: F64 = field(default_factory=lambda: _NO_FRACTIONS)
    """per operation the fraction of its time that remains"""
    launches_left: F64 = field(default_factory=lambda: _NO_FRACTIONS)
    """per operation the fraction of the host's time for its launch that remains; more than 1 where others are
    launched next to it"""
    calls: I64 = field(default_factory=lambda: _NO_ROWS)
    """that are no longer made, nor waited in"""
    waits: I64 = field(default_factory=lambda: _NO_ROWS)
    """calls that are still made, but no longer wait for the GPU"""
    host: tuple[HostWork, ...] = ()
    freed: I64 = field(default_factory=lambda: _NO_ROWS)
    """operations that no longer wait for an event of another stream"""
    hidden: bool = False
    """the operations overlap with all others: a step takes at least as long as they do"""

    def __or__(self, other: Saving) -> Saving:
        """Both. What both take away is taken once."""
        return Saving(
            operations=np.concatenate([self.operations, other.operations]),
            left=np.concatenate([self.left, other.left]),
            launches_left=np.concatenate([self.launches_left, other.launches_left]),
            calls=np.concatenate([self.calls, other.calls]),
            waits=np.concatenate([self.waits, other.waits]),
            host=self.host + other.host,
            freed=np.concatenate([self.freed, other.freed]),
            hidden=self.hidden or other.hidden,
        )

    def renumbered(self, operations: I64, calls: I64) -> Saving:
        """In another trace; -1 for what is not in it."""
        inside = operations[self.operations] >= 0
        freed, called, waits = operations[self.freed], calls[self.calls], calls[self.waits]
        return replace(
            self,
            operations=operations[self.operations][inside],
            left=self.left[inside],
            launches_left=self.launches_left[inside],
            freed=freed[freed >= 0],
            calls=called[called >= 0],
            waits=waits[waits >= 0],
        )


def shorter(operations: npt.NDArray[np.integer], left: float | F64) -> Saving:
    """Operations that take less time; their launches stay."""
    rows = np.asarray(operations, dtype=np.int64)
    return Saving(rows, np.broadcast_to(np.asarray(left, dtype=np.float64), rows.shape), np.ones(len(rows)))


def fewer(operations: npt.NDArray[np.integer], left: float | F64 = 0.0) -> Saving:
    """Operations that are gone, or of which a fraction is left, with their launches."""
    rows = np.asarray(operations, dtype=np.int64)
    fraction = np.broadcast_to(np.asarray(left, dtype=np.float64), rows.shape)
    return Saving(rows, fraction, fraction)


def hidden(operations: npt.NDArray[np.integer]) -> Saving:
    """Operations that no longer delay others."""
    return replace(shorter(operations, 0.0), hidden=True)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The part of a process's time whose length is compared, on the GPU and on the host. The longer one sets
    the pace: a host that was ahead of the GPU when this part began will not be so for ever.
    """

    begins: tuple[int, ...]
    """moments, -1 unknown"""
    ends: tuple[I64, ...]
    """it ends with the last of these moments"""
    periods: int
    """the number of steps between"""

    def length_ns(self, time_ns: I64) -> int:
        pairs = [(b, e[e >= 0]) for b, e in zip(self.begins, self.ends, strict=True) if b >= 0]
        return max(int(time_ns[e].max() - time_ns[b]) for b, e in pairs if len(e))


class Saved:
    """The steps of a trace with less work: how much shorter they would be."""

    def __init__(self, trace: Trace, steps: StepWindows | None, own: tuple[str, ...]) -> None:
        """steps: of the trace; without them all of it is one. Raises NotEnoughDataError where no operation
        has its launch.
        """
        self._trace = trace
        self._graph, self._moments = build_with_moments(trace, own)
        self._time_ns = changed(self._graph, ())
        rows = np.arange(len(trace.operations))
        self._measured = {
            int(process): self._of_process(mine, process, steps)
            for process, mine in grouped(rows, trace.operations.process)
        }

    def _of_process(self, rows: I64, process: int, steps: StepWindows | None) -> _Measured:
        """From the first operation of the first step to that of the last: so each step counts with all of the
        host's work before its first operation. Few steps count to the end of the last operation.
        """
        start_ns = self._trace.operations.start_ns[rows]
        if steps is not None and steps.clock == "host":  # it may be far ahead of the GPU
            call = self._trace.attribution.call[rows]
            start_ns = np.where(call >= 0, np.append(self._trace.calls.start_ns, 0)[call], start_ns)
        number, inside, last = 1, np.ones(len(rows), dtype=bool), None
        if steps is not None and (mine := np.flatnonzero(steps.process == process)).size:
            number = len(mine)
            during = (start_ns >= steps.start_ns[mine[0]]) & (start_ns < steps.end_ns[mine[-1]])
            inside = during if during.any() else inside
            of_last = np.flatnonzero(inside & (start_ns >= steps.start_ns[mine[-1]]))
            if number >= _ENOUGH_STEPS and len(of_last):
                last = of_last[start_ns[of_last].argmin()]
        chosen = rows[inside]
        call = self._trace.attribution.call
        launch_begin, launch_end = (
            np.append(moment, -1)[call] for moment in (self._moments.call_begin, self._moments.call_end)
        )
        first = chosen[start_ns[inside].argmin()]
        begins = (int(self._moments.begin[first]), int(launch_begin[first]))
        if last is None:
            return _Measured(begins, (self._moments.end[chosen], launch_end[chosen]), number)
        until = rows[[last]]
        return _Measured(begins, (self._moments.begin[until], launch_begin[until]), number - 1)

    def recording_ns(self) -> int | None:
        """How much longer recording makes a step, about, in the process of the longest; None where one of the
        recordings does not say what it took.
        """
        if not all(is_noted(self._trace, process) for process in self._measured):
            return None
        time_ns = self._graph.time_ns
        longer = ((part.length_ns(time_ns) - part.length_ns(self._time_ns)) / part.periods
                  for part in self._measured.values())  # fmt: skip
        return max(round(max(longer, default=0.0)), 0)

    def per_step_ns(self, saving: Saving) -> int:
        """How much shorter a step would be in the mean, in the process that wins most."""
        time_ns = _scheduled(self._graph, self._moments, self._trace, saving)
        most = 0.0
        for process, part in self._measured.items():
            before_ns, after_ns = part.length_ns(self._time_ns), part.length_ns(time_ns)
            if saving.hidden:
                after_ns = max(after_ns, self._least_ns(process, part, saving.operations))
            most = max(most, (before_ns - after_ns) / part.periods)
        return round(most)

    def _least_ns(self, process: int, part: _Measured, rows: I64) -> int:
        """How long the operations of a process among `rows` take in this part."""
        operations, time_ns = self._trace.operations, self._graph.time_ns
        begin_ns, end_ns = time_ns[part.begins[0]], time_ns[part.ends[0]].max()
        start_ns = operations.start_ns[rows]
        mine = rows[(operations.process[rows] == process) & (start_ns >= begin_ns) & (start_ns < end_ns)]
        return Busy.of(operations.start_ns[mine], operations.end_ns[mine]).total_ns if len(mine) else 0


def _scheduled(graph: Graph, moments: Moments, trace: Trace, saving: Saving) -> I64:
    """When each moment would come, where nothing is recorded."""
    kept = np.where(graph.parts.kind == Kind.PROFILER, 0.0, 1.0)
    gone = np.zeros(len(graph.source), dtype=bool)
    rows = saving.operations
    edges = _Edges(graph)
    _keep(kept, edges.parts_of(edges.between(moments.begin[rows], moments.end[rows])), saving.left)
    left = np.ones(len(moments.begin))
    np.minimum.at(left, rows, saving.left)
    _keep(kept, edges.parts_of(edges.within(moments.begin)), left)
    _fewer_launches(kept, edges, moments, trace, saving)
    calls = saving.calls
    body = edges.between(moments.call_begin[calls], moments.call_end[calls])
    _keep(kept, edges.parts_of(body), np.zeros(len(calls)))
    _keep(kept, edges.on_the_way(moments.call_begin[calls]), np.zeros(len(calls)))
    waits = edges.into(moments.call_end[np.concatenate([calls, saving.waits])])[1]
    gone[waits[graph.owner[waits] >= 0]] = True
    gone[_on_other_streams(edges, moments, trace, saving.freed)] = True
    for work in saving.host:
        touched = edges.of_host(work)
        kept[edges.of_kinds(touched, work.kinds)] = 0.0
        _, waits = edges.into(edges.target[touched])
        gone[waits[graph.owner[waits] >= 0]] = True
    taken = np.rint(graph.parts.ns * (1 - kept)).astype(np.int64)
    taken_ns = np.bincount(graph.parts.edge, weights=taken, minlength=len(graph.source)).astype(np.int64)
    after_ns = np.maximum(graph.after_ns - taken_ns, 0)
    after_ns[gone] = _GONE_NS
    return graph.schedule(np.ascontiguousarray(after_ns))[0]


def _fewer_launches(kept: F64, edges: _Edges, moments: Moments, trace: Trace, saving: Saving) -> None:
    """The host's time for launches, and the pauses before the operations. A call that launches several, as
    that of a CUDA graph does, stays for the one that stays longest.
    """
    fewer = saving.launches_left < 1
    rows, number = np.unique(saving.operations[fewer], return_inverse=True)
    left = np.ones(len(rows))
    np.minimum.at(left, number, saving.launches_left[fewer])
    row, edge = edges.into(moments.begin[rows])
    part_row, part = edges.parts_of((row, edge))
    pauses = np.isin(edges.graph.parts.kind[part], _PAUSES)
    _keep(kept, (part_row[pauses], part[pauses]), left)
    call = trace.attribution.call
    known = call[rows] >= 0
    launches, of = np.unique(call[rows][known], return_inverse=True)
    most = np.zeros(len(launches))
    np.maximum.at(most, of, left[known])
    count = np.bincount(call[call >= 0], minlength=len(trace.calls))[launches]
    most = np.where(np.bincount(of, minlength=len(launches)) < count, 1.0, most)
    for found in edges.of_launches(moments, launches):
        _keep(kept, found, most)
    more = np.flatnonzero(saving.launches_left > 1)
    for row, part in edges.of_launches(moments, call[saving.operations[more]]):
        kept[part] = np.where(kept[part] == 1, saving.launches_left[more[row]], kept[part])


def _on_other_streams(edges: _Edges, moments: Moments, trace: Trace, rows: I64) -> I64:
    """The dependencies of operations on those of other streams, also where no event was recorded."""
    stream = np.full(len(edges.graph.time_ns), -1, dtype=np.int64)
    stream[moments.end] = trace.operations.stream
    row, edge = edges.into(moments.begin[rows])
    source = stream[edges.graph.source[edge]]
    others = (source >= 0) & (source != trace.operations.stream[rows[row]])
    return np.asarray(edge[others | (edges.graph.owner[edge] >= 0)], dtype=np.int64)


def _keep(kept: F64, found: tuple[I64, I64], left: F64) -> None:
    """Of parts no more than the fraction of the row that each belongs to."""
    row, part = found
    np.minimum.at(kept, part, left[row])


class _Edges:
    """Looks up dependencies and their parts. Results are pairs: rows of what was asked for, and what is
    found for each.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        of_operation = np.zeros(len(graph.time_ns), dtype=bool)
        of_operation[graph.begins] = of_operation[graph.ends] = True
        self.target = np.repeat(np.arange(len(graph.time_ns)), np.diff(graph.first))
        self._on_host = np.flatnonzero(
            ~of_operation[graph.source] & ~of_operation[self.target] & (graph.owner < 0)
        )

    def of_host(self, work: HostWork) -> I64:
        """The host's dependencies in which it did this work: most of their time, or a span's middle."""
        graph, found = self.graph, []
        start_ns = graph.time_ns[graph.source[self._on_host]]
        end_ns = graph.time_ns[self.target[self._on_host]]
        process = graph.process[graph.source[self._on_host]]
        for number in unique(work.spans.process).tolist():
            mine = np.flatnonzero(process == number)
            rows = np.flatnonzero(work.spans.process == number)
            spans = Busy.of(work.spans.start_ns[rows], work.spans.end_ns[rows])
            inside = 2 * spans.busy_within(start_ns[mine], end_ns[mine]) > end_ns[mine] - start_ns[mine]
            middle = np.sort((spans.start_ns + spans.end_ns) // 2)
            holds = np.searchsorted(middle, end_ns[mine]) > np.searchsorted(middle, start_ns[mine])
            found.append(self._on_host[mine[inside | holds]])
        return np.concatenate(found) if found else self._on_host[:0]

    def of_kinds(self, edge: I64, kinds: Sequence[Kind]) -> I64:
        """The parts of dependencies that are of these kinds."""
        _, part = self.parts_of((edge, edge))
        return part[np.isin(self.graph.parts.kind[part], kinds)]

    def into(self, moment: I64) -> tuple[I64, I64]:
        """All dependencies of moments, -1 for those that are not in the graph."""
        known = np.flatnonzero(moment >= 0)
        first, last = self.graph.first[moment[known]], self.graph.first[moment[known] + 1]
        return _ranges(known, first, last)

    def between(self, source: I64, target: I64) -> tuple[I64, I64]:
        """The dependency of one moment on another."""
        row, edge = self.into(np.where(source >= 0, target, -1))
        same = self.graph.source[edge] == source[row]
        return row[same], edge[same]

    def within(self, begin: I64) -> tuple[I64, I64]:
        """The dependencies of operations on the begin of one before them, which still runs: its row."""
        operation = np.full(len(self.graph.time_ns), -1, dtype=np.int64)
        known = np.flatnonzero(begin >= 0)
        operation[begin[known]] = known
        _, edge = self.into(begin)
        row = operation[self.graph.source[edge]]
        return row[row >= 0], edge[row >= 0]

    def parts_of(self, found: tuple[I64, I64]) -> tuple[I64, I64]:
        row, edge = found
        parts = self.graph.parts.edge
        which, part = _ranges(
            np.arange(len(edge)), np.searchsorted(parts, edge), np.searchsorted(parts, edge, "right")
        )
        return row[which], part

    def of_launches(
        self, moments: Moments, call: npt.NDArray[np.integer]
    ) -> tuple[tuple[I64, I64], tuple[I64, I64]]:
        """What is spent in calls, and on the way to them."""
        begin, end = (np.where(call >= 0, at[call], -1) for at in (moments.call_begin, moments.call_end))
        return self.parts_of(self.between(begin, end)), self.on_the_way(begin)

    def on_the_way(self, call_begin: I64) -> tuple[I64, I64]:
        """The host's code before calls, where it is no more than the way to them."""
        row, edge = self.into(call_begin)
        short = (self.graph.after_ns[edge] <= _ON_THE_WAY_NS) & (self.graph.owner[edge] < 0)
        row, part = self.parts_of((row[short], edge[short]))
        code = self.graph.parts.kind[part] == Kind.HOST_CODE
        return row[code], part[code]


def _ranges(row: npt.NDArray[np.integer], first: I64, last: I64) -> tuple[I64, I64]:
    """Per row all numbers from first to last."""
    count = last - first
    repeated = np.repeat(np.arange(len(row)), count)
    offset = np.arange(len(repeated)) - np.repeat(np.cumsum(count) - count, count)
    return np.asarray(row[repeated], dtype=np.int64), np.asarray(first[repeated] + offset, dtype=np.int64)
