# SPDX-License-Identifier: Apache-2.0
"""Bytes over time, of the calls for which both are known; what ranks wait for each other; and what the links
would need for the same messages.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.collectives.calls import Calls
from profiling_lab.analysis.collectives.links import Links
from profiling_lab.analysis.ranks.kinds import algorithm_bytes, bus_bytes, has_bandwidth
from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, combined


@dataclass(frozen=True, slots=True)
class Rates:
    """Bandwidths as nccl-tests define them, over the whole duration: waiting for other ranks included."""

    measured: int
    """calls whose bytes, group size and whole duration are known: the others are not in the bandwidths"""
    algorithm_bytes_per_s: int | None
    bus_bytes_per_s: int | None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How ranks met; all but `compared` None where nothing could be compared."""

    compared: int
    """collectives in which all ranks of the group were recorded, and wait for each other"""
    wait_ns: int | None = None
    """until the last rank came, summed over ranks"""
    transfer_ns: int | None = None
    """from there on"""
    spread_ns: int | None = None
    """median time from the first rank's arrival to the last one's"""
    last_rank: int | None = None
    """the rank that came last most often, where it was late by more than the clocks can show"""
    last_frac: float | None = None
    """of `compared`, how often that was"""
    bus_bytes_per_s: int | None = None
    """from the last rank's arrival on"""


@dataclass(frozen=True, slots=True)
class LinkShare:
    """The same messages as the links were measured to carry them."""

    calls: int
    """of these kinds, sizes and groups, and with a known time"""
    bus_bytes_per_s: int
    """what the links reach"""
    reached_frac: float
    """the time that the links need by the time that was taken: from the last rank's arrival on, where ranks
    could be compared, else over the whole duration"""


class Bandwidth:
    """Of any of the calls of a job. links: what the links of its machine reach, where that is known."""

    def __init__(self, calls: Calls, links: Links | None = None) -> None:
        self._calls, self._links = calls, links
        known = calls.whole & (calls.size_bytes >= 0) & (calls.end_ns > calls.start_ns)
        usable = [has_bandwidth(series.kind) and series.size > 1 for series in calls.all_series]
        self._known = known & np.array(usable)[calls.series]

    def over_duration(self, rows: I64) -> Rates:
        rows = rows[self._known[rows]]
        total_ns = int(self._calls.duration_ns[rows].sum())
        algorithm, bus = self._bytes(rows)
        return Rates(len(rows), _rate(algorithm, total_ns), _rate(bus, total_ns))

    def of_links(self, rows: I64) -> LinkShare | None:
        """None where nothing can be compared with the links."""
        calls = self._calls
        if self._links is None:
            return None
        rows = rows[self._known[rows]]
        met = rows[calls.compared[rows]]
        rows, taken_ns = (met, self._moved_ns(met)) if len(met) else (rows, calls.duration_ns[rows])
        expected_ns, took_ns, compared, bus = 0.0, 0, 0, 0.0
        for number, part in grouped(np.arange(len(rows)), calls.series[rows]):
            series, part = calls.all_series[number], part[taken_ns[part] > 0]
            sizes = calls.size_bytes[rows[part]]
            ns = self._links.expected_ns(series.kind, series.size, sizes)
            if ns is None or not len(part):
                continue
            expected_ns += float(ns.sum())
            took_ns += int(taken_ns[part].sum())
            compared += len(part)
            bus += bus_bytes(series.kind, int(sizes.sum()), series.size)
        if not compared:
            return None
        return LinkShare(compared, round(bus * 1e9 / expected_ns), expected_ns / took_ns)

    def _moved_ns(self, rows: I64) -> I64:
        """From the last rank's arrival on."""
        calls = self._calls
        duration_ns = calls.duration_ns[rows]
        waited_ns = np.clip(calls.last_ns[rows] - calls.start_ns[rows], 0, duration_ns)
        return np.asarray(duration_ns - waited_ns)

    def after_arrival(self, rows: I64) -> Arrivals:
        """rows: those whose ranks are all there."""
        calls = self._calls
        if not len(rows):
            return Arrivals(0)
        moved = self._moved_ns(rows)
        waited = calls.duration_ns[rows] - moved
        # Every rank of a collective has the same to say of it.
        collective, _ = combined(calls.series[rows], calls.number[rows])
        once = rows[np.unique(collective, return_index=True)[1]]
        last, often = np.unique(calls.last_rank[once][calls.last_rank[once] >= 0], return_counts=True)
        known = self._known[rows] & (moved > 0)
        return Arrivals(
            compared=len(once),
            wait_ns=int(waited.sum()),
            transfer_ns=int(moved.sum()),
            spread_ns=int(np.median(calls.spread_ns[once])),
            last_rank=int(last[often.argmax()]) if len(last) else None,
            last_frac=int(often.max()) / len(once) if len(last) else None,
            bus_bytes_per_s=_rate(self._bytes(rows[known])[1], int(moved[known].sum())),
        )

    def _bytes(self, rows: I64) -> tuple[int, int]:
        """Of the algorithm, and on the bus."""
        calls = self._calls
        algorithm, bus = 0, 0.0
        for number, part in grouped(rows, calls.series[rows]):
            series, size = calls.all_series[number], int(calls.size_bytes[part].sum())
            algorithm += algorithm_bytes(series.kind, size, series.size)
            bus += bus_bytes(series.kind, size, series.size)
        return algorithm, round(bus)


def _rate(size_bytes: int, time_ns: int) -> int | None:
    return size_bytes * 1_000_000_000 // time_ns if time_ns else None
