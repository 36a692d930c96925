# SPDX-License-Identifier: Apache-2.0
"""What the critical path across ranks says of a job, where it can be followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from profiling_lab.analysis.critical_path.kinds import COLLECTIVES
from profiling_lab.analysis.critical_path.what_if import Touched
from profiling_lab.analysis.ranks.blame import Blame, Hidden, Suspects
from profiling_lab.analysis.ranks.joint_path import JointPath, PathShare
from profiling_lab.analysis.ranks.path_part import NoPart, RankPart
from profiling_lab.analysis.ranks.totals import Meetings, RankRow
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64

MOST_RANKS, MOST_STEPS = 16, 8
"""that are followed, with the step before and the begin of the one behind: what one rank gives is some MB"""
LEAST_FRAC = 0.01
"""of a step that must be won"""
HIDDEN_FRAC = 0.1
"""of a step that a line takes on one rank alone, to be named though nothing would be won"""

AskFor = Callable[[tuple[int, ...], I64], Sequence[RankPart | NoPart]]
"""the parts of these ranks in these steps"""


@dataclass(frozen=True, slots=True)
class PathFinding:
    """Times are per step."""

    ranks: tuple[int, ...]
    """that were followed"""
    steps: tuple[int, ...]
    step_ns: int
    plain_step_ns: int | None
    """about as long as without a recording; None where a rank's does not say what it took"""
    in_calls_ns: int
    """what of the path is calls of CUDA that nothing holds"""
    blames: tuple[Blame, ...]
    """ranks that hold the step up, the largest gain first"""
    transfer_ns: int
    """what the step would win if transfers took no time"""
    hidden: tuple[Hidden, ...]
    """work of one rank that holds no step up"""
    shares: tuple[PathShare, ...]
    """what the path is made of, the largest first"""
    unseen_ns: int = 0
    """in CUDA graphs that were recorded as a whole, where steps have no collective outside of them"""

    @property
    def transfers_on_path_ns(self) -> int:
        """What of the path is transfers."""
        return sum(share.group_ns[COLLECTIVES] for share in self.shares)


def find(ask: AskFor, rows: Sequence[RankRow], met: Meetings) -> PathFinding | str:
    """What the path says, or why it cannot be followed."""
    comparison = met.comparison
    if not comparison.comparable or not len(comparison.steps):
        return "no step is in all recordings" if comparison.comparable else "clocks cannot be compared"
    if len(rows) < 2:
        return "fewer than two ranks have steps"
    kept = min(row.compared_steps for row in rows)
    if not kept:
        return "a step has too many collectives to keep them all"
    found = ask(_followed(rows), comparison.steps[-min(MOST_STEPS + 2, kept) :])
    for part in found:
        if isinstance(part, NoPart):
            return f"rank {part.rank}: {part.why}"
    path = JointPath([part for part in found if isinstance(part, RankPart)], met)
    if not len(path.steps):
        return "no step of all ranks begins and ends with recorded launches or operations"
    if not path.meetings:
        return "ranks have no collective in common"
    transfers = Touched(path.transfers, np.empty(0, dtype=np.intp))
    suspects = Suspects(path)
    blames = suspects.blames(LEAST_FRAC * path.step_ns)
    return PathFinding(
        ranks=tuple(path.ranks),
        steps=tuple(path.steps[: path.lengths].tolist()),
        step_ns=path.step_ns,
        plain_step_ns=path.plain_step_ns if all(part.is_noted for part in path.parts) else None,
        in_calls_ns=path.in_calls_ns(),
        blames=blames,
        transfer_ns=int(path.gains_ns([(transfers, 0.0)]).mean()),
        hidden=suspects.hidden([blame.rank for blame in blames], HIDDEN_FRAC * path.step_ns),
        shares=path.shares(),
        unseen_ns=0 if path.has_collectives else path.graphs_ns,
    )


def _followed(rows: Sequence[RankRow]) -> tuple[int, ...]:
    """All ranks; of many those that are late or take most, and some of the others."""
    if len(rows) <= MOST_RANKS:
        return tuple(row.rank for row in rows)
    few = MOST_RANKS // 4
    chosen = [row.rank for row in sorted(rows, key=lambda row: (-row.cost_ns, row.rank))[:few]]
    chosen += [row.rank for row in sorted(rows, key=lambda row: (-row.compute_ns, row.rank))[:few]]
    chosen += [row.rank for row in sorted(rows, key=lambda row: (-row.idle_ns, row.rank))[:few]]
    chosen += [rows[i].rank for i in np.linspace(0, len(rows) - 1, MOST_RANKS).astype(int).tolist()]
    return tuple(sorted(list(dict.fromkeys(chosen))[:MOST_RANKS]))
