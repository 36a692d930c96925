# SPDX-License-Identifier: Apache-2.0
"""Collectives, steps and lines of a whole job, as rows, from what was merged."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.ranks.collectives import PER_STEP
from profiling_lab.analysis.ranks.kinds import Series, bus_bytes
from profiling_lab.analysis.ranks.lines import SEPARATOR
from profiling_lab.analysis.ranks.spread import NONE
from profiling_lab.analysis.ranks.totals import Meeting, Meetings, RankComparison, Totals
from profiling_lab.records import dataclass

WORST = 3
"""single collectives named under a row"""
ALONE_FRAC = 1.2  # a line is slow on one rank if that takes this many times what the next one takes
ALONE_STEP_FRAC = 0.005  # and this share of a step more


@dataclass(frozen=True, slots=True)
class LateOne:
    """One collective and the last rank to enter it."""

    number: int
    step: int | None
    """None where collectives are numbered over the whole job"""
    rank: int
    behind_ns: int


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """All collectives of one series."""

    series: Series
    ranks: int
    occurrences: int
    compared: int
    """on all ranks of the group, and at the same time"""
    incomplete: int
    """not on every rank of the group"""
    apart: int
    """over on one rank before it began on another: not one collective, or clocks that do not agree"""
    wait_ns: int | None
    """mean time of a rank in one, until the last had come; None where nothing could be compared"""
    transfer_ns: int | None
    """mean time from there to its end"""
    spread_ns: int | None
    """median time from the first rank's arrival to the last one's"""
    last_rank: int | None
    """the rank that came last most often"""
    last_frac: float | None
    size_bytes: int | None
    """mean message of one rank, see kinds.bus_bytes; None where the file has no sizes"""
    bus_bytes_per_s: float | None
    """by NCCL's convention, over the transfer time"""
    worst: tuple[LateOne, ...]

    @property
    def key(self) -> str:
        return f"{self.series}/{self.series.numbered}"


@dataclass(frozen=True, slots=True)
class RankStepRow:
    """One step over all ranks that have it."""

    number: int
    ranks: int
    mean_ns: int
    most_ns: int
    most_rank: int
    least_ns: int
    least_rank: int
    spread_ns: int | None
    """from the first rank's begin to the last one's; None where clocks cannot be compared"""

    @property
    def key(self) -> str:
        return f"step {self.number}"

    @property
    def imbalance(self) -> float:
        """The slowest rank over the mean."""
        return self.most_ns / self.mean_ns if self.mean_ns else 1.0


@dataclass(frozen=True, slots=True)
class RankLineRow:
    """One line over all ranks, without communication; times are per step."""

    kind: str
    """'compute', 'copy' or 'idle'"""
    line: str
    """file:line, '' where none is known"""
    cause: str
    """of idle time"""
    ranks: int
    """ranks on which it took time"""
    mean_ns: int
    """over all ranks"""
    most_ns: int
    most_rank: int
    second_ns: int
    """of the rank that comes next"""
    others_ns: int
    """mean of all ranks but `most_rank`"""
    least_ns: int
    alone: bool
    """it is slow on `most_rank` and on no other"""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.line}:{self.cause}"


def collective_rows(totals: Totals, met: Meetings) -> tuple[CollectiveRow, ...]:
    """By the time that ranks lose waiting, the most first."""
    rows = [_collective(totals, series, met) for series in sorted(totals.starts)]
    return tuple(sorted(rows, key=lambda row: (-(row.wait_ns or 0) * row.compared * row.ranks, row.key)))


def _collective(totals: Totals, series: Series, all_met: Meetings) -> CollectiveRow:
    met, comparison = all_met.of[series], all_met.comparison
    chosen = met.together & comparison.comparable & series.is_together
    compared = int(chosen.sum())
    ranks = met.starts.ranks[chosen]
    arrivals = int(ranks.sum())
    waited = int((ranks * met.last_ns[chosen] - met.starts.total[chosen]).sum())
    moved = int((met.ends.total[chosen] - ranks * met.last_ns[chosen]).sum())
    late = chosen & (met.behind_ns > comparison.late_ns)
    last, often = np.unique(met.starts.most_rank[late], return_counts=True)
    sizes = totals.sizes.get(series)
    size = int(sizes.most.mean()) if sizes is not None and len(sizes) else None
    mean_transfer = moved // arrivals if arrivals else None
    group = series.size or met.expected
    return CollectiveRow(
        series=series,
        ranks=met.expected,
        occurrences=len(met.starts),
        compared=compared,
        incomplete=int((~met.whole).sum()),
        apart=int((met.whole & ~met.together).sum()),
        wait_ns=waited // arrivals if arrivals else None,
        transfer_ns=mean_transfer,
        spread_ns=int(np.median((met.starts.most - met.starts.least)[chosen])) if compared else None,
        last_rank=int(last[often.argmax()]) if len(last) else None,
        last_frac=int(often.max()) / compared if len(last) else None,
        size_bytes=size,
        bus_bytes_per_s=(
            bus_bytes(series.kind, size, group) / (mean_transfer / 1e9)
            if size is not None and mean_transfer and group > 1
            else None
        ),
        worst=_worst(series, met, late),
    )


def _worst(series: Series, met: Meeting, late: np.ndarray) -> tuple[LateOne, ...]:
    rows = np.flatnonzero(late)
    rows = rows[np.argsort(-met.behind_ns[rows], kind="stable")][:WORST]
    by_step = series.numbered == "order"
    return tuple(
        LateOne(
            number=int(met.starts.keys[row]) % PER_STEP if by_step else int(met.starts.keys[row]),
            step=int(met.starts.keys[row]) // PER_STEP if by_step else None,
            rank=int(met.starts.most_rank[row]),
            behind_ns=int(met.behind_ns[row]),
        )
        for row in rows.tolist()
    )


def step_rows(totals: Totals, comparison: RankComparison) -> tuple[RankStepRow, ...]:
    """In the order of the steps."""
    walls, begins = totals.walls, totals.begins
    return tuple(
        RankStepRow(
            number=int(walls.keys[i]),
            ranks=int(walls.ranks[i]),
            mean_ns=int(walls.total[i] // walls.ranks[i]),
            most_ns=int(walls.most[i]),
            most_rank=int(walls.most_rank[i]),
            least_ns=int(walls.least[i]),
            least_rank=int(walls.least_rank[i]),
            spread_ns=int(begins.most[i] - begins.least[i]) if comparison.comparable else None,
        )
        for i in range(len(walls))
    )


def line_rows(totals: Totals, step_ns: int) -> tuple[RankLineRow, ...]:
    """By how much the slowest rank takes more than the mean of the others, the most first."""
    lines, rows = totals.lines, []
    for i, key in enumerate(lines.keys.tolist()):
        kind, line, cause = key.split(SEPARATOR)
        everywhere = int(lines.ranks[i]) == totals.ranks
        most, total = int(lines.most[i]), int(lines.total[i])
        second = 0 if int(lines.second[i]) == NONE else int(lines.second[i])
        # Where lines were left out, a line that is missing may only be short: then only its ranks count.
        others = (totals.ranks if totals.lines_complete else int(lines.ranks[i])) - 1
        rows.append(
            RankLineRow(
                kind=kind,
                line=line,
                cause=cause,
                ranks=int(lines.ranks[i]),
                mean_ns=total // (others + 1),
                most_ns=most,
                most_rank=int(lines.most_rank[i]),
                second_ns=second,
                others_ns=(total - most) // others if others else 0,
                least_ns=int(lines.least[i]) if everywhere else 0,
                alone=others > 0
                and most >= ALONE_FRAC * second
                and most - second >= ALONE_STEP_FRAC * step_ns > 0,
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.others_ns - row.most_ns, row.key)))
