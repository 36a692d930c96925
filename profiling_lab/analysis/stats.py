# SPDX-License-Identifier: Apache-2.0
"""Count, total, average, median, extremes and spread of durations by key: what every summary table prints."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import FARTHEST_NS, I32, I64


@dataclass(frozen=True, slots=True)
class Stats:
    """Of some values, defined as in `nsys stats`; averages and medians are rounded down to whole numbers."""

    count: int
    total: int
    average: int
    median: int
    """of an even number of values the middle of the two in the middle"""
    shortest: int
    longest: int
    deviation: int | None
    """standard deviation of the sample (n - 1); None for a single value"""


NO_STATS = Stats(0, 0, 0, 0, 0, 0, None)


@dataclass(frozen=True, slots=True)
class StatsByKey:
    """Columns with one row per key."""

    total: I64
    count: I64
    shortest: I64
    longest: I64
    median: I64
    deviation: npt.NDArray[np.float64]

    @classmethod
    def of(cls, key: npt.NDArray[np.integer], value: I64, keys: int) -> StatsByKey:
        """`key` is 0 .. keys-1, or negative for rows to leave out."""
        columns = _analysis.statistics(
            np.ascontiguousarray(key, dtype=np.int32), np.ascontiguousarray(value, dtype=np.int64), keys
        )
        return cls(*columns)

    def __getitem__(self, key: int) -> Stats:
        count, total = int(self.count[key]), int(self.total[key])
        if not count:
            return NO_STATS
        return Stats(
            count=count,
            total=total,
            average=total // count,
            median=int(self.median[key]),
            shortest=int(self.shortest[key]),
            longest=int(self.longest[key]),
            deviation=round(float(self.deviation[key])) if count > 1 else None,
        )

    def ranked(self, names: tuple[str, ...] | list[str]) -> list[int]:
        """The keys that have rows, the largest total first, equal ones by name."""
        return sorted(np.flatnonzero(self.count).tolist(), key=lambda i: (-int(self.total[i]), names[i]))


def possible(start_ns: I64, end_ns: I64) -> npt.NDArray[np.bool_]:
    """Rows at times that a recording can have. Those of damaged files are not, and sums of them overflow."""
    return np.asarray((start_ns > -FARTHEST_NS) & (start_ns <= end_ns) & (end_ns < FARTHEST_NS))


def merged_names(number: I32, names: tuple[str, ...]) -> tuple[I32, tuple[str, ...]]:
    """Number equal names equally: one name may have several entries in a string table."""
    distinct = tuple(dict.fromkeys(names))
    position = {name: i for i, name in enumerate(distinct)}
    table = np.array([position[name] for name in names] or [0], dtype=np.int32)
    return table[number], distinct


def grouped(rows: npt.NDArray[np.integer], key: npt.NDArray[np.integer]) -> Iterator[tuple[int, I64]]:
    """The rows of each key; `key` is per row given."""
    if not len(rows):
        return
    order = np.argsort(key, kind="stable")
    keys, first = np.unique(key[order], return_index=True)
    for number, part in zip(keys.tolist(), np.split(rows[order], first[1:]), strict=True):
        yield number, np.asarray(part, dtype=np.int64)
