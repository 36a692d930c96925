# SPDX-License-Identifier: Apache-2.0
"""Which recording is which rank; and whether all are of one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from profiling_lab.analysis.ranks.clock_move import ClockMove
from profiling_lab.analysis.ranks.reading import FileSummary
from profiling_lab.analysis.ranks.summary import RankFacts
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I64, full

_SAID_BY = {
    "recording": "ranks as the recordings say",
    "name": "ranks as the file names say",
    "": "ranks in the order of files and process ids: nothing names them",
}
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Assignment:
    """A rank's number, and the start of its time."""

    rank: int
    zero_ns: int


@dataclass(frozen=True, slots=True)
class Assignments:
    """What `numbered` found."""

    of_files: list[tuple[Assignment | None, ...]]
    """per file and rank; None for those that were not asked for"""
    said_by: str
    missing: tuple[int, ...]
    world_size: int | None
    notes: tuple[str, ...]


def numbered(
    all_facts: Sequence[Sequence[RankFacts]], only: tuple[int, ...], devices: tuple[int, ...], least: int = 2
) -> Assignments:
    """Number the ranks of all files. Raises NotEnoughDataError if the files belong to several jobs or fewer
    than `least` ranks are left, UsageError if a rank or device was asked for that there is not.
    """
    every = [facts for file in all_facts for facts in file]
    known = all(facts.rank is not None for facts in every)
    said_by = max((facts.said_by for facts in every), key=len) if known else ""
    numbers = [facts.rank if known and facts.rank is not None else i for i, facts in enumerate(every)]
    _one_job(every, numbers)
    world = next((facts.world_size for facts in every if facts.world_size is not None), None)
    _all_there("rank", only, numbers)
    _all_there("device", devices, [facts.device for facts in every])
    is_chosen = [
        (not only or number in only) and (not devices or facts.device in devices)
        for number, facts in zip(numbers, every, strict=True)
    ]
    if sum(is_chosen) < least:
        first = every[is_chosen.index(True)].path if any(is_chosen) else every[0].path
        needed = "two ranks to compare" if least > 1 else "one rank"
        raise NotEnoughDataError(f"expected at least {needed}, found {sum(is_chosen)} ({first})")
    all_wall = all(facts.is_wall for facts in every)
    zero_ns = min(facts.span_ns[0] for facts in every)
    one_clock = all_wall or sum(map(bool, all_facts)) == 1
    places = iter(zip(numbers, every, is_chosen, strict=True))
    assignments = [
        tuple(
            Assignment(number, zero_ns if one_clock else facts.span_ns[0]) if chosen else None
            for number, facts, chosen in (next(places) for _ in file)
        )
        for file in all_facts
    ]
    missing = sorted(set(range(world if world is not None else max(numbers) + 1)) - set(numbers))
    return Assignments(
        assignments,
        _SAID_BY[said_by],
        tuple(missing) if known else (),
        world,
        _apart(every, numbers, all_wall),
    )


def _one_job(all_facts: Sequence[RankFacts], numbers: Sequence[int]) -> None:
    worlds = {facts.world_size: facts for facts in all_facts if facts.world_size is not None}
    if len(worlds) > 1:
        (first, a), (second, b) = sorted(worlds.items())[:2]
        raise NotEnoughDataError(
            f"the recordings are of different jobs: {Path(a.path).name} is of {first} ranks, "
            f"{Path(b.path).name} of {second}"
        )
    at: dict[int, RankFacts] = {}
    for number, facts in zip(numbers, all_facts, strict=True):
        if number in at:
            raise NotEnoughDataError(
                f"rank {number} is there twice: {Path(at[number].path).name} and {Path(facts.path).name}; "
                "expected one recording of each rank of one job"
            )
        at[number] = facts


def _apart(all_facts: Sequence[RankFacts], numbers: Sequence[int], all_wall: bool) -> tuple[str, ...]:
    """Recordings that do not overlap in time are hardly of one run."""
    if not all_wall:
        return ()
    begun = max(range(len(all_facts)), key=lambda i: all_facts[i].span_ns[0])
    ended = min(range(len(all_facts)), key=lambda i: all_facts[i].span_ns[1])
    if all_facts[begun].span_ns[0] <= all_facts[ended].span_ns[1]:
        return ()
    seconds = (all_facts[begun].span_ns[0] - all_facts[ended].span_ns[1]) / 1e9
    return (
        f"rank {numbers[begun]} begins {seconds:,.3f} s after rank {numbers[ended]} has ended, by the clocks "
        "of their machines: if they are of different runs, comparing them means nothing",
    )


def _all_there(what: str, wanted: tuple[int, ...], there: Sequence[int]) -> None:
    for number in wanted:
        if number not in there:
            known = ", ".join(map(str, sorted(set(there))[:_LISTED]))
            more = ", .." if len(set(there)) > _LISTED else ""
            raise UsageError(f"--{what} {number}: the job has {what} {known}{more}")


def assign(file: FileSummary, assigned: tuple[Assignment | None, ...]) -> FileSummary:
    """The ranks that were asked for, with their numbers; times count from the job's begin."""
    pairs = zip(file.ranks, assigned, strict=True)
    return replace(
        file,
        ranks=tuple(
            replace(moved, facts=replace(moved.facts, rank=one.rank))
            for moved, one in ((rank.moved(ClockMove(-one.zero_ns)), one) for rank, one in pairs if one)
        ),
    )


def starts_of(file: FileSummary, pid: int, device: int) -> I64:
    """When the steps of one rank began."""
    return next(
        (rank.start_ns for rank in file.ranks if (rank.facts.pid, rank.facts.device) == (pid, device)),
        full(0, 0),
    )


def shift_of(file: FileSummary, starts: I64) -> tuple[int, ...]:
    """Per rank of a file, how many of the steps that began at `starts` came before its first one."""
    return tuple(_shift(rank.start_ns, starts) for rank in file.ranks)


def _shift(mine: I64, starts: I64) -> int:
    if not len(mine):
        return 0
    apart = [
        int(np.median(np.abs(mine - starts[by : by + len(mine)])))
        for by in range(len(starts) - len(mine) + 1)
    ]
    best = int(np.argmin(apart)) if apart else 0
    # Clocks that are off by more than half a step say nothing: then all began together.
    usual = int(np.median(np.diff(starts))) if len(starts) > 1 else 0
    return best if apart and 2 * apart[best] <= usual else 0
