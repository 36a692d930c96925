# SPDX-License-Identifier: Apache-2.0
"""What all ranks have in common, merged; and what one rank makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.ranks.kinds import Series
from profiling_lab.analysis.ranks.reading import FileSummary
from profiling_lab.analysis.ranks.spread import NONE, Spread, merged_by_name
from profiling_lab.analysis.ranks.summary import PARTS, RankFacts, RankSummary
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, unique

LATE_NS = 10_000
"""a rank that comes this much after the others is not late: kernels of one launch start so far apart"""
LATE_ACCURACIES = 3
"""nor one that comes less than this many times the accuracy of the clocks after them"""


@dataclass(frozen=True, slots=True)
class Totals:
    """Merged over ranks: as large for thousands as for two."""

    ranks: int
    walls: Spread
    """wall time by the number of a step"""
    begins: Spread
    """when steps began"""
    starts: dict[Series, Spread]
    """when collectives began, by their numbers"""
    ends: dict[Series, Spread]
    sizes: dict[Series, Spread]
    """message sizes of those that have one"""
    first: dict[Series, int]
    """the number from which on no rank left collectives out, where one did"""
    lines: Spread
    """time per step by line_key"""
    lines_complete: bool
    """no rank left lines out"""


def totals_of(file: FileSummary) -> Totals:
    return merge_totals([_alone(rank) for rank in file.ranks])


def _alone(rank: RankSummary) -> Totals:
    number, found = rank.facts.rank or 0, rank.collectives.series
    is_part = rank.collectives.left_out > 0
    steps = max(len(rank), 1)
    sized = {series: occurrences.size_bytes >= 0 for series, occurrences in found.items()}
    return Totals(
        ranks=1,
        walls=Spread.of(number, rank.number, rank.end_ns - rank.start_ns),
        begins=Spread.of(number, rank.number, rank.start_ns),
        starts={s: Spread.of(number, o.number, o.start_ns) for s, o in found.items()},
        ends={s: Spread.of(number, o.number, o.end_ns) for s, o in found.items()},
        sizes={
            s: Spread.of(number, o.number[sized[s]], o.size_bytes[sized[s]])
            for s, o in found.items()
            if sized[s].any()
        },
        first={s: int(o.number.min()) for s, o in found.items() if is_part},
        lines=Spread.of(
            number,
            np.array(rank.lines.key, dtype=np.str_),
            np.array([ns // steps for ns in rank.lines.total_ns], dtype=np.int64),
        ),
        lines_complete=rank.lines.complete,
    )


def merge_totals(parts: Sequence[Totals]) -> Totals:
    return Totals(
        ranks=sum(part.ranks for part in parts),
        walls=Spread.merged([part.walls for part in parts]),
        begins=Spread.merged([part.begins for part in parts]),
        starts=merged_by_name([part.starts for part in parts]),
        ends=merged_by_name([part.ends for part in parts]),
        sizes=merged_by_name([part.sizes for part in parts]),
        first={
            s: max(part.first[s] for part in parts if s in part.first)
            for s in dict.fromkeys(s for part in parts for s in part.first)
        },
        lines=Spread.merged([part.lines for part in parts]),
        lines_complete=all(part.lines_complete for part in parts),
    )


@dataclass(frozen=True, slots=True)
class RankComparison:
    """How ranks are compared."""

    present: tuple[int, ...]
    steps: I64
    """numbers of the steps that all ranks have; each rank's own are taken where there are none"""
    tolerance_ns: int
    """how well the clocks agree"""
    comparable: bool
    """clocks can be compared at all"""

    @property
    def late_ns(self) -> int:
        return max(LATE_NS, LATE_ACCURACIES * self.tolerance_ns)


@dataclass(frozen=True, slots=True)
class Meeting:
    """The collectives of one series, rank by rank arrived. Per number, all in the rows of `starts`."""

    starts: Spread
    ends: Spread
    expected: int
    whole: npt.NDArray[np.bool_]
    """every rank of the group is there"""
    together: npt.NDArray[np.bool_]
    """the last came before the first left, so they are one collective"""
    behind_ns: I64
    """the last rank after the mean of the others"""
    cost_ns: I64
    """the last rank after the one before it: what its being in time would save"""

    @property
    def last_ns(self) -> I64:
        return self.starts.most


@dataclass(frozen=True, slots=True)
class Meetings:
    """All collectives of a job, and where a rank looks for its own without asking all groups."""

    comparison: RankComparison
    of: dict[Series, Meeting]
    of_rank: dict[int, tuple[Series, ...]]
    """series of groups whose ranks are known, by rank"""
    of_all: tuple[Series, ...]
    """series of no group: any rank may have them"""

    def expected_of(self, rank: int) -> tuple[Series, ...]:
        return (*self.of_rank.get(rank, ()), *self.of_all)


def meetings(totals: Totals, comparison: RankComparison) -> Meetings:
    """Which ranks met in the collectives of each series."""
    present = frozenset(comparison.present)
    of: dict[Series, Meeting] = {}
    of_rank: dict[int, list[Series]] = {}
    for series in totals.starts:
        here = [rank for rank in series.group_ranks if rank in present]
        of[series] = _meeting(totals, series, comparison, len(here))
        for rank in here:
            of_rank.setdefault(rank, []).append(series)
    of_all = tuple(series for series in of if not series.group and not series.group_ranks)
    return Meetings(comparison, of, {rank: tuple(mine) for rank, mine in of_rank.items()}, of_all)


def _meeting(totals: Totals, series: Series, comparison: RankComparison, here: int) -> Meeting:
    """here: how many ranks of the group there are, 0 where that is unknown."""
    starts, ends = totals.starts[series], totals.ends[series]
    if series in totals.first:
        kept = starts.keys >= totals.first[series]
        starts, ends = starts.only(kept), ends.only(kept)
    expected = here or min(series.size or frame_size(starts), frame_size(starts))
    whole = starts.ranks >= max(expected, 2)
    together = whole & (starts.most <= ends.least + comparison.tolerance_ns)
    others = np.maximum(starts.ranks - 1, 1)
    return Meeting(
        starts=starts,
        ends=ends,
        expected=expected,
        whole=whole,
        together=together,
        behind_ns=np.where(whole, starts.most - (starts.total - starts.most) // others, 0),
        cost_ns=np.where(whole & (starts.second != NONE), starts.most - starts.second, 0),
    )


def frame_size(starts: Spread) -> int:
    return int(starts.ranks.max()) if len(starts) else 0


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank compared with the others; times are per step, over the steps that all have."""

    rank: int
    facts: RankFacts
    steps: int
    """steps counted"""
    compared_steps: int
    """those of which the collectives are kept"""
    step_ns: int
    compute_ns: int
    exposed_ns: int
    """communication that compute does not hide"""
    copy_ns: int
    """copies that neither hides"""
    idle_ns: int
    communication_ns: int
    """all of it, hidden or not"""
    median_ns: int
    """wall of the median step"""
    wait_ns: int | None
    """in collectives, for the last rank to come; None where clocks or collectives do not show it"""
    exposed_wait_ns: int | None
    """the part of it that compute does not hide, if compute covers a collective from its begin on"""
    transfer_ns: int | None
    """in collectives, after the last rank had come"""
    compared: int
    """collectives compared"""
    late: int
    """of these, how often this rank was the last, by more than RankComparison.late_ns"""
    late_steps: int
    """steps in which it was late at least once"""
    behind_ns: int
    """median of how far behind the mean of the others, when late"""
    cost_ns: int
    """per step, after the rank before it, when late: what being in time would save, unless it is hidden"""
    missing: int
    """collectives that the other ranks of its groups have and this one has not"""

    @property
    def key(self) -> str:
        return f"rank {self.rank}"

    @property
    def late_frac(self) -> float | None:
        return self.late / self.compared if self.compared else None


def rows_of(file: FileSummary, met: Meetings) -> tuple[RankRow, ...]:
    """The rows of a file's ranks."""
    return tuple(_row(rank, met) for rank in file.ranks)


def _row(rank: RankSummary, all_met: Meetings) -> RankRow:
    number, comparison = rank.facts.rank or 0, all_met.comparison
    mine = rank.collectives.series
    chosen = (
        np.isin(rank.number, comparison.steps) if len(comparison.steps) else np.ones(len(rank), dtype=bool)
    )
    steps = int(chosen.sum())
    walls = (rank.end_ns - rank.start_ns)[chosen]
    parts = rank.parts_ns[chosen].sum(axis=0) // max(steps, 1)
    part = dict(zip(PARTS, parts.tolist(), strict=True))
    wait = exposed_wait = transfer = late = compared = missing = cost = 0
    behind: list[I64] = []
    late_at: list[I64] = []
    for series in dict.fromkeys((*mine, *all_met.expected_of(number))):
        if not series.is_together or (series.group_ranks and number not in series.group_ranks):
            continue
        met, found = all_met.of[series], mine.get(series)
        if found is None:
            missing += int((met.starts.ranks > 0).sum()) if _belongs(series, met, comparison) else 0
            continue
        row = met.starts.rows(found.number)
        known = row >= 0
        row = row[known]
        missing += len(met.starts) - len(row)
        here = met.together[row] & comparison.comparable
        start, end = found.start_ns[known][here], found.end_ns[known][here]
        last = met.last_ns[row][here]
        waited = np.clip(last - start, 0, end - start)
        wait += int(waited.sum())
        # Compute begins during a collective and ends before it: exposed is its end, the transfer and
        # before that some of the wait.
        exposed_wait += int(np.clip(found.exposed_ns[known][here] - (end - start - waited), 0, waited).sum())
        transfer += int((end - start - waited).sum())
        was_late = (met.starts.most_rank[row][here] == number) & (
            met.behind_ns[row][here] > comparison.late_ns
        )
        compared += int(here.sum())
        late += int(was_late.sum())
        behind.append(met.behind_ns[row][here][was_late])
        late_at.append(start[was_late])
        cost += int(met.cost_ns[row][here][was_late].sum())
    each = max(steps, 1)
    in_steps = int(chosen[rank.collectives.steps_left_out :].sum())
    per_step = max(in_steps, 1)
    far, at = (np.concatenate(p) if p else np.empty(0, dtype=np.int64) for p in (behind, late_at))
    return RankRow(
        rank=number,
        facts=rank.facts,
        steps=steps,
        compared_steps=in_steps,
        step_ns=int(walls.sum()) // each,
        **part,
        median_ns=int(np.median(walls)) if steps else 0,
        wait_ns=wait // per_step if compared else None,
        exposed_wait_ns=exposed_wait // per_step if compared else None,
        transfer_ns=transfer // per_step if compared else None,
        compared=compared,
        late=late,
        late_steps=len(unique(np.searchsorted(rank.start_ns, at, side="right"))),
        behind_ns=int(np.median(far)) if len(far) else 0,
        cost_ns=cost // per_step,
        missing=missing,
    )


def _belongs(series: Series, met: Meeting, comparison: RankComparison) -> bool:
    """Whether a rank without any collective of a series should have some: it is of the group, or the file
    names no groups and all others have them."""
    return bool(series.group_ranks) or (not series.group and met.expected >= len(comparison.present) - 1 > 0)
