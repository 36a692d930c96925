# SPDX-License-Identifier: Apache-2.0
"""One clock for all ranks: no rank leaves an all-reduce before the last one enters, so all end it together.

Each rank's clock is moved until its collectives end when those of the others do, on the median. Clocks of
machines also run at rates that differ by some millionths: where the distance from the others grows evenly, it
is taken out too. What remains is how well the clocks agree; nothing smaller than that is called late.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling_lab.analysis.ranks.clock_move import ClockMove
from profiling_lab.analysis.ranks.kinds import Series
from profiling_lab.analysis.ranks.pools import Handle, Pool
from profiling_lab.analysis.ranks.reading import FileSummary
from profiling_lab.analysis.ranks.spread import Spread, merged_by_name
from profiling_lab.analysis.ranks.summary import RankSummary
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64

ROUNDS = 20
GOOD_NS = 1_000
AT_LEAST = 3
"""collectives that a rank must share with others before its clock is moved"""
RATE_AT_LEAST = 12
"""collectives before its rate is changed"""
GROWS_BY = 3.0
"""times the scatter by which the distance must have grown"""
MOST_RATE = 1e-3
"""no clock is that far off: what looks so is something else"""

Ends = dict[Series, Spread]


@dataclass(frozen=True, slots=True)
class Drift:
    """How one rank's ends differ from the mean of all."""

    median_ns: int
    off_ns: int
    """median distance from that median"""
    collectives: int
    rate: float = 0.0
    """by which the distance grows, 0 if it does not"""
    pivot_ns: int = 0
    """where the median is"""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What became of the clocks."""

    state: str
    """'one': one file, one clock; 'collectives': moved until collectives end together; 'wall': as the files
    tie them to the calendar, without a collective to check; 'none': they cannot be compared"""
    moved_ns: int
    """the farthest that one clock was moved against another"""
    accuracy_ns: int | None
    """median distance of a rank's ends from the others', of the worst rank; None where that is unknown"""

    rate: float = 0.0
    """by how much the rates of two clocks differed at most"""
    own: int = 0
    """ranks that share too few collectives with others: their clocks were left as they are"""

    @property
    def comparable(self) -> bool:
        return self.state != "none"


def align(pool: Pool, handles: list[Handle], is_wall: Sequence[Sequence[bool]]) -> Clocks:
    """Put all summaries on one clock. is_wall: per file and rank, whether the calendar rules its clock."""
    files, all_wall = len(is_wall), all(wall for file in is_wall for wall in file)
    moved: dict[tuple[int, int], int] = {}
    rates: dict[tuple[int, int], float] = {}
    drifts: list[tuple[Drift, ...]] = []
    for _ in range(ROUNDS):
        ends = pool.merge(merged_by_name, handles, ends_of)
        drifts = pool.gather(pool.map(drifts_of, handles, ends))
        farthest = max((abs(drift.median_ns) for file in drifts for drift in file), default=0)
        grows = any(drift.rate for file in drifts for drift in file)
        if files == 1 or (farthest <= GOOD_NS and not grows):
            break
        steps = [tuple(ClockMove(-d.median_ns, -d.rate, d.pivot_ns) for d in file) for file in drifts]
        for i, file in enumerate(steps):
            for j, step in enumerate(file):
                moved[i, j] = moved.get((i, j), 0) + step.by_ns
                rates[i, j] = rates.get((i, j), 0.0) + step.rate
        pool.change(move, handles, steps)
    known = [drift for file in drifts for drift in file if drift.collectives]
    accuracy = max((abs(drift.median_ns) + drift.off_ns for drift in known), default=None)
    ranks = sum(map(len, is_wall))
    if files == 1:
        return Clocks("one", 0, accuracy)
    if known:
        ruled = [(i, j) for i, file in enumerate(drifts) for j, d in enumerate(file) if d.collectives]
        ways, speeds = ([of.get(rank, 0) for rank in ruled] for of in (moved, rates))
        return Clocks(
            "collectives", int(max(ways) - min(ways)), accuracy, max(speeds) - min(speeds), ranks - len(known)
        )
    return Clocks("wall" if all_wall else "none", 0, accuracy)


def ends_of(file: FileSummary) -> Ends:
    """When the collectives that all leave together ended, on the ranks of a file."""
    return merged_by_name(
        [
            {
                series: Spread.of(_rank(rank), found.number, found.end_ns)
                for series, found in rank.collectives.series.items()
                if series.ends_together
            }
            for rank in file.ranks
        ]
    )


def drifts_of(file: FileSummary, ends: Ends) -> tuple[Drift, ...]:
    """The Drift of each rank of a file."""
    return tuple(_drift(rank, ends) for rank in file.ranks)


def move(file: FileSummary, moves: tuple[ClockMove, ...]) -> FileSummary:
    moved = zip(file.ranks, moves, strict=True)
    return FileSummary(file.path, tuple(rank.moved(move) for rank, move in moved), file.failure)


def _drift(rank: RankSummary, ends: Ends) -> Drift:
    parts: list[I64] = []
    times: list[I64] = []
    for series, found in rank.collectives.series.items():
        if series not in ends:
            continue
        spread = ends[series]
        row = spread.rows(found.number)
        shared = spread.ranks[row] >= 2
        parts.append((found.end_ns - spread.total[row] // spread.ranks[row])[shared])
        times.append(found.end_ns[shared])
    apart, time = (np.concatenate(each) if each else np.empty(0, dtype=np.int64) for each in (parts, times))
    if len(apart) < AT_LEAST:
        return Drift(0, 0, 0)
    median = int(np.median(apart))
    rate, pivot = _rate(apart, time)
    return Drift(median, int(np.median(np.abs(apart - median))), len(apart), rate, pivot)


def _rate(apart_ns: I64, time_ns: I64) -> tuple[float, int]:
    """How fast the distance grows: the medians of the first and the last third, and the time between them.
    0 if it does not grow by more than it scatters, and where it has no effect.
    """
    pivot = int(np.median(time_ns))
    third = len(apart_ns) // 3
    if len(apart_ns) < RATE_AT_LEAST:
        return 0.0, pivot
    order = np.argsort(time_ns, kind="stable")
    begin, end = order[:third], order[-third:]
    passed = float(np.median(time_ns[end]) - np.median(time_ns[begin]))
    grown = float(np.median(apart_ns[end]) - np.median(apart_ns[begin]))
    if passed <= 0 or abs(grown) > MOST_RATE * passed:
        return 0.0, pivot
    rate = grown / passed
    left = apart_ns - rate * (time_ns - pivot)
    scatter = float(np.median(np.abs(left - np.median(left))))
    return (rate, pivot) if abs(grown) > max(GROWS_BY * scatter, GOOD_NS) else (0.0, pivot)


def _rank(summary: RankSummary) -> int:
    assert summary.facts.rank is not None, "ranks are numbered before clocks are compared"
    return summary.facts.rank
