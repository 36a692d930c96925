# SPDX-License-Identifier: Apache-2.0
"""What limits the comparison of a job's ranks, each in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling_lab.analysis.critical_path.recorder_time import recorder_note
from profiling_lab.analysis.ranks.finding import PathFinding
from profiling_lab.analysis.ranks.summary import RankFacts
from profiling_lab.analysis.ranks.totals import RankRow, Totals
from profiling_lab.trace.columns import I64

_NAMED = 8


def ended_early(every: Sequence[RankFacts], totals: Totals) -> tuple[str, ...]:
    """Recordings with fewer steps that end more than a step before the others. every: on one clock."""
    most = max(facts.steps for facts in every)
    last_ns = max(facts.span_ns[1] for facts in every)
    step_ns = int(np.median(totals.walls.total // totals.walls.ranks)) if len(totals.walls) else 0
    found = [
        (facts.rank or 0, last_ns - facts.span_ns[1])
        for facts in every
        if 0 < facts.steps < most and last_ns - facts.span_ns[1] > step_ns
    ]
    return tuple(
        f"rank {rank}: its recording ends {ns / 1e6:,.1f} ms before the last one: what comes behind, such as "
        "after a crash, is not compared"
        for rank, ns in found
    )


def absent(missing: tuple[int, ...]) -> tuple[str, ...]:
    """Ranks without a recording."""
    if not missing:
        return ()
    more = "s are" if len(missing) > 1 else " is"
    return (f"recording{more} missing ({_named(missing)}): what the others wait for may be there",)


def other_program(totals: Totals) -> tuple[str, ...]:
    """No rank shares a kind of collective with another."""
    if not totals.starts or any((spread.ranks > 1).any() for spread in totals.starts.values()):
        return ()
    having = sorted({int(rank) for spread in totals.starts.values() for rank in spread.most_rank})
    if len(having) < 2:
        return ()
    return (
        f"no collective of rank {having[0]} is in the recording of rank {having[1]}: if they are of "
        "different programs, comparing them means nothing",
    )


def unnamed(totals: Totals, how: str) -> tuple[str, ...]:
    """Collectives whose groups are unknown. how: to record them."""
    if totals.ranks == 2 or all(series.group for series in totals.starts if series.is_together):
        return ()
    return (
        "no communicator is named: collectives of a kind are matched over all ranks, as if all were in one "
        f"group ({how})",
    )


def of_rows(rows: Sequence[RankRow], common: I64) -> tuple[str, ...]:
    """What the ranks say of themselves, and what they lack."""
    notes = []
    for row in rows:
        lacks = f"lacks {row.missing:,} of the collectives that others have" if row.missing else ""
        if row.missing and not row.facts.collectives:
            lacks = "its recording has no collectives: when it came to them cannot be compared"
        notes += [(row.rank, note) for note in (*row.facts.notes, lacks) if note]
    own = "no step is in all recordings: each rank's own steps are counted"
    return (*notes_by_ranks(notes), *(() if len(common) else (own,)))


def notes_by_ranks(notes: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    """Ranks with the same note are named together."""
    ranks_of: dict[str, list[int]] = {}
    for rank, note in notes:
        ranks_of.setdefault(note, []).append(rank)
    return tuple(f"{_named(numbers)}: {note}" for note, numbers in ranks_of.items())


def _named(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    shown = ", ".join(map(str, numbers[:_NAMED]))
    return f"ranks {shown}" + (f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else "")


def of_path(found: PathFinding | str, rows: Sequence[RankRow]) -> tuple[str, ...]:
    """Why the path across ranks could not be followed, or not everywhere, and what recording makes of it."""
    if isinstance(found, str):
        return (f"what sets the step across ranks is unknown: {found}",) if len(rows) > 1 else ()
    notes = [
        f"rank {each.rank} takes {each.excess_ns / 1e6:.3f} ms per step more than the others at {each.line}, "
        "but no step would be shorter without it: something else sets the step"
        for each in found.hidden
    ]
    if found.unseen_ns:
        notes.append(
            f"{found.unseen_ns / 1e6:.3f} ms per step are in CUDA graphs that were recorded as a whole, with "
            "any collectives in them: record with --graph-nodes"
        )
    noted, in_calls = found.plain_step_ns is not None, found.in_calls_ns / max(found.step_ns, 1)
    notes += recorder_note(noted, found.step_ns, found.plain_step_ns or 0, in_calls)
    if len(found.ranks) != len(rows):
        notes.append(f"what sets the step was followed on {len(found.ranks)} of {len(rows):,} ranks")
    return tuple(notes)
