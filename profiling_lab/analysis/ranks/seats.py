# SPDX-License-Identifier: Apache-2.0
"""Which recording is which rank; and whether all are of one job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from profiling_lab.analysis.ranks.reading import FileSummary
from profiling_lab.analysis.ranks.summary import Card
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace.columns import I64, full

_SAID_BY = {
    "recording": "ranks as the recordings say",
    "name": "ranks as the file names say",
    "": "ranks in the order of files and process ids: nothing names them",
}
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's number, and where its time zero lies."""

    rank: int
    zero_ns: int


@dataclass(frozen=True, slots=True)
class Seats:
    """seats: per file and rank; None for those that were not asked for."""

    seats: list[tuple[Seat | None, ...]]
    said_by: str
    missing: tuple[int, ...]
    world_size: int | None
    notes: tuple[str, ...]


def numbered(cards: Sequence[Sequence[Card]], only: tuple[int, ...], devices: tuple[int, ...]) -> Seats:
    """Number the ranks of all files. Raises NotEnoughDataError if the files belong to several jobs or fewer
    than two ranks are left, UsageError if a rank or device was asked for that there is not.
    """
    every = [card for file in cards for card in file]
    known = all(card.rank is not None for card in every)
    said_by = max((card.said_by for card in every), key=len) if known else ""
    numbers = [card.rank if known and card.rank is not None else i for i, card in enumerate(every)]
    _one_job(every, numbers)
    world = next((card.world_size for card in every if card.world_size is not None), None)
    _all_there("rank", only, numbers)
    _all_there("device", devices, [card.device for card in every])
    is_chosen = [
        (not only or number in only) and (not devices or card.device in devices)
        for number, card in zip(numbers, every, strict=True)
    ]
    if sum(is_chosen) < 2:
        raise NotEnoughDataError(
            f"expected at least two ranks to compare, found {sum(is_chosen)}"
            f" ({every[is_chosen.index(True)].path})"
        )
    all_wall = all(card.is_wall for card in every)
    zero_ns = min(card.span_ns[0] for card in every)
    one_clock = all_wall or sum(map(bool, cards)) == 1
    places = iter(zip(numbers, every, is_chosen, strict=True))
    seats = [
        tuple(
            Seat(number, zero_ns if one_clock else card.span_ns[0]) if chosen else None
            for number, card, chosen in (next(places) for _ in file)
        )
        for file in cards
    ]
    missing = sorted(set(range(world if world is not None else max(numbers) + 1)) - set(numbers))
    return Seats(
        seats, _SAID_BY[said_by], tuple(missing) if known else (), world, _apart(every, numbers, all_wall)
    )


def _one_job(cards: Sequence[Card], numbers: Sequence[int]) -> None:
    worlds = {card.world_size: card for card in cards if card.world_size is not None}
    if len(worlds) > 1:
        (first, a), (second, b) = sorted(worlds.items())[:2]
        raise NotEnoughDataError(
            f"the recordings are of different jobs: {Path(a.path).name} is of {first} ranks, "
            f"{Path(b.path).name} of {second}"
        )
    at: dict[int, Card] = {}
    for number, card in zip(numbers, cards, strict=True):
        if number in at:
            raise NotEnoughDataError(
                f"rank {number} is there twice: {Path(at[number].path).name} and {Path(card.path).name}; "
                "expected one recording of each rank of one job"
            )
        at[number] = card


def _apart(cards: Sequence[Card], numbers: Sequence[int], all_wall: bool) -> tuple[str, ...]:
    """Recordings that do not overlap in time are hardly of one run."""
    if not all_wall:
        return ()
    begun = max(range(len(cards)), key=lambda i: cards[i].span_ns[0])
    ended = min(range(len(cards)), key=lambda i: cards[i].span_ns[1])
    if cards[begun].span_ns[0] <= cards[ended].span_ns[1]:
        return ()
    seconds = (cards[begun].span_ns[0] - cards[ended].span_ns[1]) / 1e9
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


def seat(file: FileSummary, places: tuple[Seat | None, ...]) -> FileSummary:
    """The ranks that were asked for, with their numbers; times count from the job's begin."""
    pairs = zip(file.ranks, places, strict=True)
    return replace(
        file,
        ranks=tuple(
            replace(moved, card=replace(moved.card, rank=place.rank))
            for moved, place in ((rank.moved(-place.zero_ns), place) for rank, place in pairs if place)
        ),
    )


def starts_of(file: FileSummary, pid: int, device: int) -> I64:
    """When the steps of one rank began."""
    return next(
        (rank.start_ns for rank in file.ranks if (rank.card.pid, rank.card.device) == (pid, device)),
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
    return int(np.argmin(apart)) if apart else 0
