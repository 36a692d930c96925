# SPDX-License-Identifier: Apache-2.0
"""The collectives of one rank, numbered so that the same one has the same number on every rank."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.places import Place, launched_at
from profiling_lab.analysis.ranks.clock_move import ClockMove
from profiling_lab.analysis.ranks.kinds import RankSet, Series
from profiling_lab.analysis.ranks.options import Options
from profiling_lab.records import dataclass, replace
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32, I64, full, unique
from profiling_lab.trace.extras import CollectiveFacts
from profiling_lab.trace.operation_classes import OperationClass, collective_kind
from profiling_lab.trace.step_windows import StepWindows

PER_STEP = 1 << 20
"""the number of a collective is its step's times this plus its place in the step"""
AT_MOST = 8_000
"""collectives kept of one rank for a comparison: those of its last steps, in which the path across ranks is
followed. They are most of what a rank takes while a job is compared: 360 KB"""


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The collectives of one series on one rank."""

    number: I64
    """distinct"""
    start_ns: I64
    end_ns: I64
    size_bytes: I64
    """-1 unknown"""
    exposed_ns: I64
    """the part of each in which the rank did not compute"""
    place: I32
    """row of RankCollectives.places, -1 where lines were not asked for"""
    whole: npt.NDArray[np.bool_]
    """all of it is in the part of the trace that was asked for"""

    def moved(self, move: ClockMove, number: int = 0) -> Occurrences:
        return replace(
            self, number=self.number + number, start_ns=move(self.start_ns), end_ns=move(self.end_ns)
        )


@dataclass(frozen=True, slots=True)
class RankCollectives:
    """All collectives of one rank."""

    series: dict[Series, Occurrences]
    alone: dict[Series, Occurrences]
    """collectives outside of steps, which cannot be matched; {} where not all were asked for"""
    places: tuple[Place, ...]
    """the lines that launched them, by number; () where they were not asked for"""
    hidden: tuple[I64, I64]
    """starts and ends of the intervals in which the GPU communicated and computed; with `places`"""
    outside: int
    """collectives outside of steps, which have no number"""
    left_out: int
    """collectives beyond AT_MOST"""
    steps_left_out: int
    """the rank's first steps, of which not all are kept"""

    def moved(self, move: ClockMove, steps: int = 0) -> RankCollectives:
        """The same on another clock, and with other numbers of steps."""
        starts, ends = self.hidden
        return replace(
            self,
            series={
                series: o.moved(move, steps * PER_STEP if series.numbered == "order" else 0)
                for series, o in self.series.items()
            },
            alone={series: o.moved(move) for series, o in self.alone.items()},
            hidden=(move(starts), move(ends)),
        )


def collectives(
    trace: Trace, rows: npt.NDArray[np.intp], steps: StepWindows, number: I64, options: Options
) -> RankCollectives:
    """rows: the operations of the rank; steps: its steps in time order, number: their numbers.

    A program makes the same collectives in the same order on every rank of a group, so they are counted in
    the order of their launches, within a step: recordings need not begin together.
    """
    operations = trace.operations
    classes = trace.classes[rows]
    compute = rows[classes == OperationClass.COMPUTE]
    computing = _analysis.merged(operations.start_ns[compute], operations.end_ns[compute])
    rows = rows[classes == OperationClass.COMMUNICATION]
    call = trace.attribution.call[rows]
    # Where the GPU runs behind or streams overtake each other only the host's order is the program's.
    by_host = bool(len(rows)) and bool((call >= 0).all())
    time_ns = trace.calls.start_ns[call] if by_host else operations.start_ns[rows]
    order = np.argsort(time_ns, kind="stable")
    rows, time_ns = rows[order], time_ns[order]
    starts, ends = (steps.host_start_ns, steps.host_end_ns) if by_host else (steps.start_ns, steps.end_ns)
    step = np.searchsorted(starts, time_ns, side="right") - 1
    inside = step >= 0
    inside[inside] = time_ns[inside] < ends[step[inside]]
    if steps.sign == "window":
        step, inside = np.zeros(len(rows), dtype=np.intp), np.ones(len(rows), dtype=bool)
    details = _details(trace, rows)
    unnumbered = np.array([facts.sequence < 0 for facts in details], dtype=bool)
    outside = int((~inside & unnumbered).sum())
    at: dict[Series, tuple[list[int], list[int]]] = {}
    alone: dict[Series, tuple[list[int], list[int]]] = {}
    seen: Counter[tuple[Series, int]] = Counter()
    place_of: dict[tuple[Series, int], int] = {}
    first_step, past = (0, len(rows)) if options.each_collective else _kept(step)
    cut = past < len(rows)
    of_members: dict[int, RankSet] = {}
    for i, facts in enumerate(details[:past]):
        by_sequence = facts.sequence >= 0
        numbered = by_sequence or bool(inside[i])
        if (not numbered and not options.each_collective) or (first_step and step[i] < first_step):
            continue
        group = of_members.get(id(facts.members))
        if group is None:  # the same tuple for all collectives of a group
            group = of_members[id(facts.members)] = RankSet.of(facts.members)
        how = "sequence" if by_sequence else "order"
        series = Series(facts.kind, facts.group, group, facts.size, how)
        place = facts.sequence
        if not by_sequence:
            part = (series, facts.part_of)
            if facts.part_of >= 0 and part in place_of:
                place = place_of[part]
            else:
                counted = (series, int(step[i]) if numbered else -1)
                place = (int(number[step[i]]) * PER_STEP if numbered else 0) + seen[counted]
                seen[counted] += 1
                place_of[part] = place
        numbers, places = (at if numbered else alone).setdefault(series, ([], []))
        numbers.append(place)
        places.append(i)
    found = _Found(
        start_ns=operations.start_ns[rows],
        end_ns=operations.end_ns[rows],
        size_bytes=np.array([facts.size_bytes for facts in details], dtype=np.int64),
        place=full(len(rows), -1, np.int32),
        whole=operations.duration_ns[rows] == trace.whole.operations.duration_ns[trace.operation_rows[rows]],
    )
    lines: tuple[Place, ...] = ()
    hidden = (found.start_ns[:0], found.end_ns[:0])
    if options.each_collective:
        lines, found.place = launched_at(trace, rows, options.own)
        hidden = _both(_analysis.merged(found.start_ns, found.end_ns), computing)
    return RankCollectives(
        series={series: _occurrences(found, computing, *listed) for series, listed in at.items()},
        alone={series: _occurrences(found, computing, *listed) for series, listed in alone.items()},
        places=lines,
        hidden=hidden,
        outside=outside,
        left_out=int((step[:past] < first_step).sum() if first_step else 0) + len(rows) - past,
        steps_left_out=first_step + cut,
    )


def _kept(step: npt.NDArray[np.intp]) -> tuple[int, int]:
    """The first step of which collectives are kept, and how many come before the end of those.

    step: of each collective, in the order of launches. One that has more than AT_MOST is kept from its begin.
    """
    if len(step) <= AT_MOST:
        return 0, len(step)
    whole = np.flatnonzero(np.diff(step[-AT_MOST - 1 :]) > 0)
    if len(whole):
        return int(step[len(step) - AT_MOST + whole[0]]), len(step)
    first = int(step[-1])
    return max(first, 0), int(np.searchsorted(step, first)) + AT_MOST


@dataclass(slots=True)
class _Found:
    """What is known of each kernel."""

    start_ns: I64
    end_ns: I64
    size_bytes: I64
    place: I32
    whole: npt.NDArray[np.bool_]


def _occurrences(
    found: _Found, computing: tuple[I64, I64], numbers: list[int], places: list[int]
) -> Occurrences:
    """Of equal numbers (several kernels of one collective) the first start and the last end count."""
    number, first, where = np.unique(
        np.array(numbers, dtype=np.int64), return_index=True, return_inverse=True
    )
    at = np.array(places, dtype=np.intp)
    start_ns = full(len(number), np.iinfo(np.int64).max)
    end_ns = full(len(number), np.iinfo(np.int64).min)
    whole = np.ones(len(number), dtype=bool)
    np.minimum.at(start_ns, where, found.start_ns[at])
    np.maximum.at(end_ns, where, found.end_ns[at])
    np.logical_and.at(whole, where, found.whole[at])
    hidden_ns = covered(end_ns, *computing) - covered(start_ns, *computing)
    return Occurrences(
        number=number,
        start_ns=start_ns,
        end_ns=end_ns,
        size_bytes=found.size_bytes[at[first]],
        exposed_ns=end_ns - start_ns - hidden_ns,
        place=found.place[at[first]],
        whole=whole,
    )


def _both(one: tuple[I64, I64], other: tuple[I64, I64]) -> tuple[I64, I64]:
    """The intervals that are in both of two unions of disjoint ones."""
    edges = unique(np.concatenate([*one, *other]))
    starts, ends = edges[:-1], edges[1:]
    kept = np.ones(len(starts), dtype=bool)
    for begins, stops in (one, other):
        at = np.searchsorted(begins, starts, side="right") - 1
        kept &= (at >= 0) & (starts < np.append(stops, np.iinfo(np.int64).min)[at])
    return _analysis.merged(np.ascontiguousarray(starts[kept]), np.ascontiguousarray(ends[kept]))


def covered(time_ns: I64, starts: I64, ends: I64) -> I64:
    """The time that disjoint intervals cover before each moment."""
    if not len(starts):
        return np.zeros(len(time_ns), dtype=np.int64)
    at = np.searchsorted(starts, time_ns, side="right") - 1
    passed = np.concatenate([[0], np.cumsum(ends - starts)])
    within = np.minimum(time_ns, ends[at]) - starts[at]
    covered: I64 = np.where(at >= 0, passed[at] + within, 0)
    return covered


def _details(trace: Trace, rows: npt.NDArray[np.intp]) -> list[CollectiveFacts]:
    """Where the file says nothing of a collective there is its kernel alone."""
    name, names = trace.operations.name[rows], trace.operations.short_names
    kernels = {number: CollectiveFacts(collective_kind(names[number])) for number in unique(name).tolist()}
    noted = trace.source.collectives(trace.whole, trace.operation_rows[rows])
    return [facts or kernels[number] for facts, number in zip(noted, name.tolist(), strict=True)]
