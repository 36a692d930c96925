# SPDX-License-Identifier: Apache-2.0
"""Sums over collectives: by line, group or kind, or each alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.collectives.bandwidth import Arrivals, Bandwidth, LinkShare, Rates
from profiling_lab.analysis.collectives.calls import Calls
from profiling_lab.analysis.collectives.links import Links
from profiling_lab.analysis.places import Place, shares
from profiling_lab.analysis.ranks.collectives import PER_STEP, covered
from profiling_lab.analysis.ranks.kinds import RankSet, Series
from profiling_lab.analysis.stats import Stats, StatsByKey, grouped
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64, combined, unique

By: TypeAlias = Literal["line", "group", "kind", "collective"]
GROUPINGS: tuple[By, ...] = get_args(By)


@dataclass(frozen=True, slots=True)
class CollectiveSum:
    """Collectives of one kind, group and line, as far as `by` splits them; times are summed over ranks."""

    key: str
    kind: str
    """AllReduce and so on"""
    group: str
    """'' where the file names none, or where rows mix groups"""
    members: tuple[int, ...]
    """the ranks of the group, () where they are unknown or mixed"""
    group_size: int | None
    """ranks in the group, None where it is unknown or mixed"""
    ranks: int
    """recorded ranks that have some"""
    start_ns: int
    """of the first one, after the first GPU operation of the job"""
    step: int | None
    number: int | None
    """of one collective: its place in its step, or in the whole job where there is no step"""
    times: Stats
    """ns that one rank is in one collective, waiting for others included"""
    sizes: Stats
    """bytes: message of one rank, where the file has it; see kinds.algorithm_bytes"""
    busy_ns: int
    """time in which any of them ran: once, where several did"""
    hidden_ns: int
    """of it, while the GPU computed as well"""
    rates: Rates
    arrivals: Arrivals
    links: LinkShare | None
    """None without measured links, or where they cannot be compared"""
    places: tuple[Place, ...]

    @property
    def count(self) -> int:
        return self.times.count

    @property
    def exposed_ns(self) -> int:
        """While the GPU did not compute."""
        return self.busy_ns - self.hidden_ns

    @property
    def size_total_bytes(self) -> int | None:
        """None where some are unknown."""
        return self.sizes.total if self.sizes.count == self.times.count else None


def sums(
    calls: Calls, by: By, limit: int | None, links: Links | None = None
) -> tuple[tuple[CollectiveSum, ...], int]:
    """The rows that expose most, and how many there are in all."""
    key, distinct = _keys(calls, by)
    size = len(distinct)
    busy, hidden = busy_and_hidden(calls, key, size)
    times = StatsByKey.of(key, calls.duration_ns, size)
    sizes = StatsByKey.of(np.where(calls.size_bytes >= 0, key, -1), calls.size_bytes, size)
    names = _Names(calls, by, distinct)
    ranked = sorted(range(size), key=lambda i: (hidden[i] - busy[i], -busy[i], names.key(i)))
    shown = ranked[:limit]
    rows_of = dict(grouped(np.arange(len(calls)), key))
    bandwidth = Bandwidth(calls, links)
    out = []
    for i in shown:
        rows = rows_of[i]
        series = names.series(i)
        out.append(
            CollectiveSum(
                key=names.key(i),
                kind=series.kind,
                group=series.group,
                members=series.members,
                group_size=series.size or None,
                ranks=len(unique(calls.rank[rows])),
                start_ns=int(calls.start_ns[rows].min()),
                step=names.step(rows),
                number=names.number(rows),
                times=times[i],
                sizes=sizes[i],
                busy_ns=busy[i],
                hidden_ns=hidden[i],
                rates=bandwidth.over_duration(rows),
                arrivals=bandwidth.after_arrival(rows[calls.compared[rows]]),
                links=bandwidth.of_links(rows),
                places=_places(calls, rows),
            )
        )
    return tuple(out), size


def busy_and_hidden(calls: Calls, key: npt.NDArray[np.integer], keys: int) -> tuple[list[int], list[int]]:
    """Per key the time in which its calls ran on each rank, and the part of it in which that computed."""
    busy, hidden = [0] * keys, [0] * keys
    for rank, of_rank in grouped(np.arange(len(calls)), calls.rank):
        computing = calls.hidden[rank]
        for number, rows in grouped(of_rank, key[of_rank]):
            starts, ends = _analysis.merged(calls.start_ns[rows], calls.end_ns[rows])
            busy[number] += int((ends - starts).sum())
            hidden[number] += int((covered(ends, *computing) - covered(starts, *computing)).sum())
    return busy, hidden


def _keys(calls: Calls, by: By) -> tuple[I32, list[tuple[int, ...]]]:
    """The key of each call. Series that differ only in how they are numbered are one group."""
    groups: dict[tuple[object, ...], int] = {}
    kinds: dict[str, int] = {}
    group_of, kind_of = [], []
    for series in calls.all_series:
        whole = (series.kind, series.group, series.members, series.size)
        group_of.append(groups.setdefault(whole, len(groups)))
        kind_of.append(kinds.setdefault(series.kind, len(kinds)))
    if by == "collective":
        # One that cannot be matched is its rank's alone.
        alone = np.where(calls.matched, -1, calls.rank)
        return combined(calls.series, calls.number, alone)
    if by == "kind":
        return combined(np.array(kind_of)[calls.series])
    group = np.array(group_of)[calls.series]
    return combined(group, calls.place) if by == "line" else combined(group)


class _Names:
    """What a row is called, by the first of its calls."""

    def __init__(self, calls: Calls, by: By, distinct: Sequence[tuple[int, ...]]) -> None:
        self._calls, self._by, self._distinct = calls, by, distinct
        key, _ = _keys(calls, by)
        self._first = np.full(len(distinct), len(calls))
        np.minimum.at(self._first, key, np.arange(len(calls)))
        members: dict[str, set[tuple[object, ...]]] = {}
        for series in calls.all_series:
            members.setdefault(series.group, set()).add((series.members, series.size))
        self._ambiguous = {group for group, found in members.items() if len(found) > 1}
        groups = {(series.kind, series.group, series.members, series.size) for series in calls.all_series}
        self._groups_of = Counter(kind for kind, *_ in groups)

    def series(self, row: int) -> Series:
        series = self._calls.all_series[int(self._calls.series[self._first[row]])]
        mixed = self._by == "kind" and self._groups_of[series.kind] > 1
        return Series(series.kind, "", RankSet(), 0, "") if mixed else series

    def key(self, row: int) -> str:
        first, calls = self._first[row], self._calls
        series = self.series(row)
        parts = [series.kind] if self._by == "kind" else [series.kind, series.group]
        if self._by != "kind" and series.group in self._ambiguous:
            parts.append(",".join(map(str, series.members)) or str(series.size))
        if self._by == "line":
            place = calls.places[int(calls.place[first])]
            parts += [place.phase, place.key]
        if self._by == "collective":
            parts += [series.numbered, str(int(calls.number[first]))]
            parts += [] if calls.matched[first] else [f"rank {int(calls.rank[first])}"]
        return "/".join(part for part in parts if part)

    def step(self, rows: I64) -> int | None:
        is_in_step = self._by == "collective" and self._numbered(rows) == "order"
        return int(self._calls.number[rows[0]]) // PER_STEP if is_in_step else None

    def number(self, rows: I64) -> int | None:
        if self._by != "collective" or not self._numbered(rows):
            return None
        number = int(self._calls.number[rows[0]])
        return number % PER_STEP if self._numbered(rows) == "order" else number

    def _numbered(self, rows: I64) -> str:
        calls = self._calls
        return calls.all_series[int(calls.series[rows[0]])].numbered if calls.matched[rows[0]] else ""


def _places(calls: Calls, rows: I64) -> tuple[Place, ...]:
    """The lines that launched these calls, with the time of each."""
    found = []
    for number, part in grouped(rows, calls.place[rows]):
        ns = int(calls.duration_ns[part].sum())
        found.append(replace(calls.places[number], ns=ns, count=len(part)))
    return shares(found)
