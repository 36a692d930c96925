# SPDX-License-Identifier: Apache-2.0
"""How a value spreads over ranks: what many ranks can be merged into without keeping them.

A job is read rank by rank into a RankSummary, wherever its file lies (pools.py). What ranks have in common,
the arrivals at a collective or the time of a line, goes into a Spread: its size does not grow with the
ranks, and merging is associative and commutative, so that a tree of processes may do it in any order. What
needs all ranks, such as how long one waited for the last, is then asked of each rank with the Spread in hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, full

NONE = int(np.iinfo(np.int64).min)
"""there is no second rank"""

Keys = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """One row per key. Of equal values the lowest rank is named."""

    keys: Keys
    """sorted and distinct: integers or texts"""
    ranks: I64
    """how many have a value"""
    total: I64
    most: I64
    most_rank: I64
    second: I64
    """what comes next below `most`, or equal to it, on another rank; NONE where only one rank has a value"""
    least: I64
    least_rank: I64

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, rank: int, keys: Keys, values: I64) -> Spread:
        """The values of one rank; keys are distinct."""
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order].astype(np.int64)
        alone, number = full(len(keys), 1), full(len(keys), rank)
        return cls(keys, alone, values, values, number, full(len(keys), NONE), values, number)

    @classmethod
    def merged(cls, parts: Sequence[Spread]) -> Spread:
        """The values of different ranks together."""
        if len(parts) == 1:
            return parts[0]
        keys, where = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
        ranks, total = (np.zeros(len(keys), dtype=np.int64) for _ in range(2))
        np.add.at(ranks, where, np.concatenate([part.ranks for part in parts]))
        np.add.at(total, where, np.concatenate([part.total for part in parts]))
        most, least = (np.concatenate([getattr(p, name) for p in parts]) for name in ("most", "least"))
        most_rank = np.concatenate([part.most_rank for part in parts])
        least_rank = np.concatenate([part.least_rank for part in parts])
        top, bottom = _first(where, -most, most_rank), _first(where, least, least_rank)
        beaten = most.copy()
        beaten[top] = NONE
        second = full(len(keys), NONE)
        np.maximum.at(second, where, np.maximum(beaten, np.concatenate([part.second for part in parts])))
        return cls(keys, ranks, total, most[top], most_rank[top], second, least[bottom], least_rank[bottom])

    def only(self, kept: npt.NDArray[np.bool_]) -> Spread:
        """Some of its rows."""
        return Spread(*(getattr(self, field.name)[kept] for field in fields(self)))

    def rows(self, keys: Keys) -> npt.NDArray[np.intp]:
        """The row of each key; -1 where there is none."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.intp)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)


def _first(group: npt.NDArray[np.intp], *by: I64) -> npt.NDArray[np.intp]:
    """The row that comes first in each group; groups are numbered from 0 without a gap."""
    order = np.lexsort((*reversed(by), group))
    return order[np.searchsorted(group[order], np.arange(int(group.max()) + 1 if len(group) else 0))]


def merged_by_name(parts: Sequence[dict[Any, Spread]]) -> dict[Any, Spread]:
    """The same for spreads with names."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: Spread.merged([part[name] for part in parts if name in part]) for name in names}
