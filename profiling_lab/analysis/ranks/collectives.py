# SPDX-License-Identifier: Apache-2.0
"""The collectives of one rank, numbered so that the same one has the same number on every rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.ranks.kinds import Series
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I64, full
from profiling_lab.trace.extras import CollectiveFacts
from profiling_lab.trace.operation_classes import OperationClass, collective_kind, operation_classes
from profiling_lab.trace.step_windows import StepWindows

PER_STEP = 1 << 20
"""the number of a collective is its step's times this plus its place in the step"""
AT_MOST = 20_000
"""collectives kept of one rank: those of its first steps"""


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


@dataclass(frozen=True, slots=True)
class RankCollectives:
    """All collectives of one rank."""

    series: dict[Series, Occurrences]
    outside: int
    """collectives outside of steps, which have no number"""
    left_out: int
    """collectives beyond AT_MOST"""

    def moved(self, by_ns: int, steps: int = 0) -> RankCollectives:
        """The same on another clock, and with other numbers of steps."""
        return RankCollectives(
            {
                series: Occurrences(
                    o.number + (steps * PER_STEP if series.numbered == "order" else 0),
                    o.start_ns + by_ns,
                    o.end_ns + by_ns,
                    o.size_bytes,
                    o.exposed_ns,
                )
                for series, o in self.series.items()
            },
            self.outside,
            self.left_out,
        )


def collectives(trace: Trace, rows: npt.NDArray[np.intp], steps: StepWindows, number: I64) -> RankCollectives:
    """rows: the operations of the rank; steps: its steps in time order, number: their numbers.

    A program makes the same collectives in the same order on every rank of a group, so they are counted in
    the order of their launches, within a step: recordings need not begin together.
    """
    operations = trace.operations
    classes = operation_classes(operations)[rows]
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
    seen: Counter[tuple[Series, int]] = Counter()
    for i, facts in enumerate(details[:AT_MOST]):
        by_sequence = facts.sequence >= 0
        if not by_sequence and not inside[i]:
            continue
        series = Series(
            facts.kind,
            facts.group,
            facts.members,
            facts.size,
            "sequence" if by_sequence else "order",
        )
        place = facts.sequence
        if not by_sequence:
            counted = (series, int(step[i]))
            place = int(number[step[i]]) * PER_STEP + seen[counted]
            seen[counted] += 1
        numbers, places = at.setdefault(series, ([], []))
        numbers.append(place)
        places.append(i)
    sizes = np.array([facts.size_bytes for facts in details], dtype=np.int64)
    return RankCollectives(
        {series: _occurrences(trace, rows, sizes, computing, *listed) for series, listed in at.items()},
        outside,
        max(len(rows) - AT_MOST, 0),
    )


def _occurrences(
    trace: Trace,
    rows: npt.NDArray[np.intp],
    sizes: I64,
    computing: tuple[I64, I64],
    numbers: list[int],
    places: list[int],
) -> Occurrences:
    """Of equal numbers (several kernels of one collective) the first start and the last end count."""
    number, first, where = np.unique(
        np.array(numbers, dtype=np.int64), return_index=True, return_inverse=True
    )
    at = np.array(places, dtype=np.intp)
    start_ns = full(len(number), np.iinfo(np.int64).max)
    end_ns = full(len(number), np.iinfo(np.int64).min)
    np.minimum.at(start_ns, where, trace.operations.start_ns[rows[at]])
    np.maximum.at(end_ns, where, trace.operations.end_ns[rows[at]])
    hidden_ns = _covered(end_ns, *computing) - _covered(start_ns, *computing)
    return Occurrences(number, start_ns, end_ns, sizes[at[first]], end_ns - start_ns - hidden_ns)


def _covered(time_ns: I64, starts: I64, ends: I64) -> I64:
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
    kernels = {number: CollectiveFacts(collective_kind(names[number])) for number in np.unique(name).tolist()}
    noted = trace.source.collectives(trace.whole, trace.operation_rows[rows])
    return [facts or kernels[number] for facts, number in zip(noted, name.tolist(), strict=True)]
