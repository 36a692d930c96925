# SPDX-License-Identifier: Apache-2.0
"""The critical path of a step: from its end back along what decided, to its begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.critical_path.graph import NO_LABEL, Graph
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, full, unique
from profiling_lab.trace.step_windows import StepWindows


@dataclass(frozen=True, slots=True)
class Segments:
    """Time in order, each nanosecond of a step once."""

    start_ns: I64
    end_ns: I64
    kind: I32
    site: I32
    """row of the graph's sites, -1 unknown"""
    label: I32
    """row of the graph's labels, -1 none"""

    @property
    def ns(self) -> I64:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where steps begin or end: moments of the graph, and the time from these to there."""

    moment: I64
    """-1: the graph does not reach there"""
    to_ns: I64


@dataclass(frozen=True, slots=True)
class StepsFound:
    """The steps that the graph holds."""

    steps: StepWindows
    begin: Boundaries
    end: Boundaries

    def lengths(self, time_ns: I64) -> I64:
        """How long each step is when the moments come at these times."""
        begin_ns = time_ns[self.begin.moment] + self.begin.to_ns
        return np.asarray(time_ns[self.end.moment] + self.end.to_ns - begin_ns, dtype=np.int64)


def steps_found(graph: Graph, steps: StepWindows) -> StepsFound:
    on_gpu = steps.clock == "gpu" or steps.sign == "window"
    begin = _boundaries(graph, steps.process, steps.start_ns, on_gpu)
    end = _boundaries(graph, steps.process, steps.end_ns, on_gpu)
    known = (begin.moment >= 0) & (end.moment >= 0)
    # Of a step that began before the first call or operation only a part was recorded.
    whole = known.copy()
    for number in unique(steps.process).tolist():
        first_ns = graph.time_ns[graph.process == number].min(initial=np.iinfo(np.int64).max)
        whole &= (steps.process != number) | (steps.start_ns >= first_ns)
    rows = np.flatnonzero(whole if whole.any() else known)
    only = [Boundaries(each.moment[rows], each.to_ns[rows]) for each in (begin, end)]
    return StepsFound(steps.only(rows), *only)


def _boundaries(graph: Graph, process: I32, time_ns: I64, on_gpu: bool) -> Boundaries:
    """At the begin of an operation, or at the end of one; else what the main thread comes to next."""
    moment = full(len(time_ns), -1)
    for number in unique(process).tolist():
        mine = np.flatnonzero(process == number)
        for moments in (graph.begins, graph.ends) if on_gpu else ():
            moments = moments[graph.process[moments] == number]
            at = np.searchsorted(graph.time_ns[moments], time_ns[mine])
            there = np.append(moments, -1)[at]
            hit = (there >= 0) & (graph.time_ns[there] == time_ns[mine]) & (moment[mine] < 0)
            moment[mine[hit]] = there[hit]
        every = np.flatnonzero(graph.process == number)
        for known in (graph.main_moments.get(number, graph.begins[:0]), every, every[-1:]):
            left = mine[moment[mine] < 0]
            at = np.searchsorted(graph.time_ns[known], time_ns[left])
            if len(known) == 1:  # nothing comes behind the last
                at = np.zeros(len(left), dtype=np.int64)
            moment[left] = np.append(known, -1)[at]
    return Boundaries(moment, np.where(moment >= 0, time_ns - graph.time_ns[moment], 0))


def path(graph: Graph, decided_by: I32, found: StepsFound, step: int) -> tuple[Segments, I32]:
    """The segments of a step, and the dependencies that its path follows."""
    begin_ns, last = int(found.steps.start_ns[step]), int(found.end.moment[step])
    end_ns = int(found.steps.end_ns[step])
    chain = _analysis.deciding_chain(graph.source, graph.time_ns, decided_by, last, begin_ns)[::-1]
    target = graph.targets(chain)
    # Each dependency: its parts, and what is unknown behind them.
    parts = graph.parts
    first = np.searchsorted(parts.edge, chain)
    count = np.searchsorted(parts.edge, chain, "right") - first
    row = np.repeat(np.arange(len(chain)), count + 1)
    position = np.arange(len(row)) - np.repeat(np.cumsum(count + 1) - (count + 1), count + 1)
    is_part = position < count[row]
    of = np.where(is_part, first[row] + position, 0)

    def column(values: npt.NDArray[Any], otherwise: Any) -> I64:
        return np.asarray(np.where(is_part, np.append(values, 0)[of], otherwise), dtype=np.int64)

    ns = column(parts.ns, graph.late_ns[target][row])
    kind, site = column(parts.kind, Kind.UNKNOWN), column(parts.site, -1)
    label = column(parts.label, NO_LABEL)
    # What the graph does not reach is unknown: nothing was recorded there.
    reached = int(graph.time_ns[graph.source[chain[0]]] if len(chain) else graph.time_ns[last])
    ends = reached + np.cumsum(ns)
    there = int(ends[-1]) if len(ends) else reached
    begins = np.concatenate([[min(begin_ns, reached)], ends - ns, [there]]).clip(begin_ns, end_ns)
    ends = np.concatenate([[reached], ends, [max(end_ns, there)]]).clip(begin_ns, end_ns)
    kept = np.flatnonzero(ends > begins)

    def within(values: I64, otherwise: int) -> I32:
        return np.concatenate([[otherwise], values, [otherwise]])[kept].astype(np.int32)

    return Segments(
        begins[kept].astype(np.int64),
        ends[kept].astype(np.int64),
        within(kind, Kind.UNKNOWN),
        within(site, -1),
        within(label, NO_LABEL),
    ), chain
