# SPDX-License-Identifier: Apache-2.0
"""The answer in a sentence: is there a straggler, what does it cost, and which line makes it late.

Where the path across ranks can be followed it decides: what mending a rank would win. Else who was last to
collectives does, and where there are none the ranks' own durations.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiling_lab.analysis.ranks.blame import Blame
from profiling_lab.analysis.ranks.finding import PathFinding
from profiling_lab.analysis.ranks.lines import SEPARATOR, LineTimes
from profiling_lab.analysis.ranks.spread import Spread
from profiling_lab.analysis.ranks.totals import RankRow
from profiling_lab.records import dataclass

STRAGGLER_FRAC = 0.5
"""of all that lateness costs, what one rank's does, and of the steps, those it is late in, at least"""
COST_FRAC = 0.01
"""of a step that being in time would save, at least"""
WAITING_FRAC = 0.05
"""of a step that ranks wait on average without computing, from which on it is reported"""
IMBALANCE = 1.05
"""most over mean of compute, from which on load counts as uneven where there are no collectives"""
TRANSFER_FRAC = 0.25
"""of a step that it would win without transfers, or of its path that they are, from which on they set it"""
TRANSFER_GAIN_FRAC = 0.1
"""of a step that it would win without transfers, at least: else something else takes as long"""
UNSEEN_FRAC = 0.5
"""of a step that may be in CUDA graphs recorded as a whole: with more, and no collective, nothing is known"""
EXPLAINS_FRAC = 0.5
"""of a straggler's extra time, what a line must account for to be named as the cause"""


@dataclass(frozen=True, slots=True)
class Excess:
    """What one rank takes per step beyond the mean of the others."""

    part: str
    """'compute', 'copy' or 'idle'"""
    part_ns: int
    line: str
    """file:line, '' where no line accounts for half of it"""
    cause: str
    """of idle time"""
    line_ns: int


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """The finding over all ranks."""

    kind: str
    """'straggler', 'transfer' (communication sets the step), 'waiting', 'balanced', 'uneven' or 'unknown'"""
    rank: int | None
    cost_ns: int
    """per step: of a straggler what mending it would save, of transfers what their taking no time would, else
    what ranks wait on average; without what compute hides"""
    excess: Excess | None
    imbalance: float
    """compute of the rank with most over the mean"""
    by_durations: bool
    """clocks or collectives did not show it: from each rank's own durations"""
    blame: Blame | None = None
    """of a straggler its line, and of what kind it is; None where the path could not be followed"""
    also: tuple[Blame, ...] = ()
    """other ranks that hold the step up, by what mending each alone would save"""

    @property
    def found(self) -> bool:
        return self.kind in ("straggler", "uneven")


def verdict(
    rows: Sequence[RankRow], excess_of: dict[int, Excess], path: PathFinding | None = None
) -> JobVerdict:
    """rows: those with steps; excess_of: by rank, for those that `suspects` names."""
    step_ns = _mean([row.step_ns for row in rows])
    imbalance = imbalance_of(rows) if rows else 1.0
    if path is not None and path.blames:
        first, also = path.blames[0], path.blames[1:]
        excess = excess_of.get(first.rank)
        return JobVerdict("straggler", first.rank, first.gain_ns, excess, imbalance, False, first, also)
    if path is not None and path.unseen_ns >= UNSEEN_FRAC * max(step_ns, 1):
        return JobVerdict("unknown", None, 0, None, imbalance, False)
    if any(row.compared for row in rows):
        worst = max(rows, key=lambda row: (row.cost_ns, -row.rank))
        waits = _mean([row.exposed_wait_ns or 0 for row in rows])
        # Others that compute meanwhile lose nothing by waiting.
        others = _mean([row.exposed_wait_ns or 0 for row in rows if row is not worst])
        cost = min(worst.cost_ns, others)
        is_most = worst.cost_ns >= STRAGGLER_FRAC * sum(row.cost_ns for row in rows)
        is_often = worst.late_steps >= STRAGGLER_FRAC * worst.compared_steps
        if path is None and is_most and is_often and cost >= COST_FRAC * step_ns:
            return JobVerdict("straggler", worst.rank, cost, excess_of.get(worst.rank), imbalance, False)
        return _no_straggler(waits, step_ns, imbalance, path)
    if path is not None:
        return _no_straggler(0, step_ns, imbalance, path)
    if len(rows) < 2 or step_ns == 0:
        return JobVerdict("unknown", None, 0, None, imbalance, True)
    # The last rank waits for no other: it has the longest way to a collective and the shortest time in it.
    slow = max(rows, key=own_ns)
    others = _mean([own_ns(row) for row in rows if row is not slow])
    if own_ns(slow) - others >= (IMBALANCE - 1) * step_ns:
        return JobVerdict(
            "uneven", slow.rank, own_ns(slow) - others, excess_of.get(slow.rank), imbalance, True
        )
    return JobVerdict("balanced", None, 0, None, imbalance, True)


def _no_straggler(waits: int, step_ns: int, imbalance: float, path: PathFinding | None) -> JobVerdict:
    transfer_ns = path.transfer_ns if path is not None else 0
    on_path_ns = path.transfers_on_path_ns if path is not None else 0
    is_path = on_path_ns >= TRANSFER_FRAC * step_ns and transfer_ns >= TRANSFER_GAIN_FRAC * step_ns
    if transfer_ns >= max(waits, 1) and (is_path or transfer_ns >= TRANSFER_FRAC * step_ns):
        return JobVerdict("transfer", None, transfer_ns, None, imbalance, False)
    kind = "waiting" if waits >= WAITING_FRAC * step_ns else "balanced"
    return JobVerdict(kind, None, waits, None, imbalance, False)


def suspects(rows: Sequence[RankRow]) -> set[int]:
    """Ranks whose lines the verdict may ask for."""
    if not rows:
        return set()
    return {max(rows, key=lambda row: (row.cost_ns, -row.rank)).rank, max(rows, key=own_ns).rank}


def imbalance_of(rows: Sequence[RankRow]) -> float:
    mean = _mean([row.compute_ns for row in rows])
    return max(row.compute_ns for row in rows) / mean if mean else 1.0


def excess(row: RankRow, rows: Sequence[RankRow], mine: LineTimes, all_lines: Spread) -> Excess:
    """Where a rank's extra time goes: the part that grew most, and its line if one accounts for it."""
    others = [other for other in rows if other is not row]
    parts = {
        part: getattr(row, f"{part}_ns") - _mean([getattr(other, f"{part}_ns") for other in others])
        for part in ("compute", "copy", "idle")
    }
    part = max(parts, key=lambda name: parts[name])
    steps = max(row.facts.steps, 1)
    totals = dict(zip(all_lines.keys.tolist(), all_lines.total.tolist(), strict=True))
    best_ns, best = 0, ("", "")
    for key, ns in zip(mine.key, mine.total_ns, strict=True):
        kind, line, cause = key.split(SEPARATOR)
        own_ns = ns // steps
        more_ns = own_ns - (totals.get(key, own_ns) - own_ns) // max(len(others), 1)
        if kind == part and line and more_ns > best_ns:
            best_ns, best = more_ns, (line, cause)
    if best_ns < EXPLAINS_FRAC * parts[part]:
        best_ns, best = 0, ("", "")
    return Excess(part, parts[part], *best, best_ns)


def own_ns(row: RankRow) -> int:
    """Time of a step that is not communication: the rank's own doing."""
    return row.compute_ns + row.copy_ns + row.idle_ns


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values) if values else 0
