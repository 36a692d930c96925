# SPDX-License-Identifier: Apache-2.0
"""The collectives of all ranks as columns: one row, a call, is the part of one rank in one collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.places import Place
from profiling_lab.analysis.ranks.collectives import Occurrences
from profiling_lab.analysis.ranks.kinds import Series
from profiling_lab.analysis.ranks.summary import RankSummary
from profiling_lab.analysis.ranks.totals import Meetings
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64

_OWN = ("number", "start_ns", "end_ns", "size_bytes", "whole")


@dataclass(frozen=True, slots=True)
class Calls:
    """One row per call, by rank."""

    rank: I64
    series: I64
    """row of `all_series`"""
    all_series: tuple[Series, ...]
    number: I64
    """of the collective in its series: the same on all its ranks, where `matched`"""
    matched: npt.NDArray[np.bool_]
    start_ns: I64
    end_ns: I64
    size_bytes: I64
    """-1 unknown"""
    place: I32
    """row of `places`"""
    places: tuple[Place, ...]
    whole: npt.NDArray[np.bool_]
    """not cut by the window"""
    compared: npt.NDArray[np.bool_]
    """all ranks of the group are there, and wait for each other; else the columns below mean nothing"""
    last_ns: I64
    """when the last rank came"""
    spread_ns: I64
    """from the first rank's arrival to the last one's"""
    last_rank: I64
    """the last rank; -1 where it is no later than the clocks can show"""
    hidden: dict[int, tuple[I64, I64]]
    """by rank the intervals in which its GPU communicated and computed"""

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def duration_ns(self) -> I64:
        return self.end_ns - self.start_ns


def calls_of(ranks: Sequence[RankSummary], met: Meetings) -> Calls:
    """ranks: on one clock, with all their collectives, of which there must be one."""
    series_number: dict[Series, int] = {}
    place_number: dict[Place, int] = {}
    parts = []
    for rank in ranks:
        found = rank.collectives
        places = [place_number.setdefault(place, len(place_number)) for place in found.places]
        for matched, listed in ((True, found.series), (False, found.alone)):
            for series, occurrences in listed.items():
                row = series_number.setdefault(series, len(series_number))
                about = {"rank": rank.facts.rank or 0, "series": row, "matched": matched}
                part = {name: np.full(len(occurrences.number), value) for name, value in about.items()}
                part |= {name: getattr(occurrences, name) for name in _OWN}
                part["place"] = np.array(places, dtype=np.int32)[occurrences.place]
                parts.append(part | _arrivals(series, occurrences, matched, met))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Calls(
        all_series=tuple(series_number),
        places=tuple(place_number),
        hidden={rank.facts.rank or 0: rank.collectives.hidden for rank in ranks},
        **columns,
    )


def with_group_sizes(calls: Calls) -> Calls:
    """For recordings of all ranks of a job: groups whose size the files do not say, because recording began
    after NCCL had made the group, have the ranks that take part.
    """
    ranks: dict[str, set[int]] = {}
    for number, series in enumerate(calls.all_series):
        ranks.setdefault(series.group, set()).update(calls.rank[calls.series == number].tolist())
    known = tuple(
        replace(series, size=len(ranks[series.group])) if series.group and not series.size else series
        for series in calls.all_series
    )
    return replace(calls, all_series=known)


def _arrivals(
    series: Series, occurrences: Occurrences, matched: bool, all_met: Meetings
) -> dict[str, npt.NDArray[Any]]:
    """When the ranks came to the collectives of a series, where all did."""
    if not (matched and series.is_together and all_met.comparison.comparable):
        nothing = np.zeros_like(occurrences.number)
        return {
            "compared": nothing > 0,
            "last_ns": nothing,
            "spread_ns": nothing,
            "last_rank": nothing - 1,
        }
    met = all_met.of[series]
    row = met.starts.rows(occurrences.number)
    is_late = met.behind_ns[row] > all_met.comparison.late_ns
    return {
        "compared": met.together[row],
        "last_ns": met.last_ns[row],
        "spread_ns": (met.starts.most - met.starts.least)[row],
        "last_rank": np.where(is_late, met.starts.most_rank[row], -1),
    }
