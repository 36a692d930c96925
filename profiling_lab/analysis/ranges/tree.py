# SPDX-License-Identifier: Apache-2.0
"""How ranges nest, and their paths of names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.records import dataclass
from profiling_lab.trace.attribution import BLEED_NS
from profiling_lab.trace.columns import I32, I64, U8, combined, dense, full


@dataclass(frozen=True, slots=True)
class Nesting:
    """Ranges of one thread, domain and style nest; those that overlap without nesting have no parent."""

    parent: I32
    """per range the one around it, -1 none"""
    innermost: tuple[I32, ...]
    """for each domain and style, per moment that was asked for the innermost range around it, -1 none"""
    dropped: int
    """ranges that did not nest"""

    def inside_its_own(self, label: I32, counts: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Per range, whether one of those around it that count has the same label."""
        out = np.zeros(len(label), dtype=bool)
        rows, around = np.arange(len(label)), self.parent
        while len(rows):
            rows, around = rows[around >= 0], around[around >= 0]
            found = (label[around] == label[rows]) & counts[around]
            out[rows[found]] = True
            rows, around = rows[~found], self.parent[around[~found]]
        return out


def nest(
    start_ns: I64, end_ns: I64, thread: I32, domain: I64, style: U8, time_ns: I64, time_thread: I32
) -> Nesting:
    """Sweep the ranges of each domain and style; `time_ns` and `time_thread` are the moments to look up."""
    kind, kinds = combined(domain, style)
    parent = full(len(start_ns), -1, np.int32)
    innermost, dropped = [], 0
    for number in range(len(kinds)):
        rows = np.flatnonzero(kind == number)
        up, around, lost = _analysis.contain(
            start_ns[rows], end_ns[rows], thread[rows], time_ns, time_thread, BLEED_NS
        )
        row = np.append(rows, -1).astype(np.int32)
        parent[rows] = row[up]
        innermost.append(row[around])
        dropped += lost
    return Nesting(parent, tuple(innermost), dropped)


@dataclass(frozen=True, slots=True)
class Paths:
    """The distinct paths of labels; a path comes after its parent."""

    number: I32
    """per range the row of its path"""
    parent: tuple[int, ...]
    """-1 at the root"""
    label: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.parent)

    def of(self, path: int) -> tuple[int, ...]:
        """The path and those above it, outermost first."""
        found = [path]
        while self.parent[found[-1]] >= 0:
            found.append(self.parent[found[-1]])
        return tuple(reversed(found))

    def sum_below(self, value: npt.NDArray[np.integer]) -> I64:
        """Per path the values of those right below it."""
        out = np.zeros(len(self), dtype=np.int64)
        up = np.array(self.parent, dtype=np.int64)
        np.add.at(out, up[up >= 0], value[up >= 0])
        return out

    def at_least_below(self, value: I64) -> I64:
        """Values raised to the sum of those below: no path weighs less than what is in it."""
        out, below = value.tolist(), [0] * len(self)
        for path in reversed(range(len(self))):
            out[path] = max(out[path], below[path])
            if self.parent[path] >= 0:
                below[self.parent[path]] += out[path]
        return np.array(out, dtype=np.int64)

    def depth_first(self, chosen: set[int], weight: I64) -> list[int]:
        """The chosen paths, each after its parent, the heaviest of one parent first."""
        children: dict[int, list[int]] = {}
        for path in sorted(chosen, key=lambda p: (-int(weight[p]), p)):
            children.setdefault(self.parent[path], []).append(path)
        order: list[int] = []
        todo = children.get(-1, [])[::-1]
        while todo:
            order.append(todo.pop())
            todo += children.get(order[-1], [])[::-1]
        return order


def paths(label: I32, parent: I32) -> Paths:
    """Number the paths of labels from the root to each range, one level of the tree after the other."""
    number = full(len(label), -1, np.int32)
    up_of: list[int] = []
    labels: list[int] = []
    todo, remaining = np.flatnonzero(parent < 0), np.flatnonzero(parent >= 0)
    up = full(len(todo), -1)
    while len(todo):
        local, distinct = dense((up + 1) << 32 | label[todo])
        number[todo] = len(labels) + local
        up_of += ((distinct >> 32) - 1).tolist()
        labels += (distinct & 0xFFFFFFFF).tolist()
        ready = number[parent[remaining]] >= 0
        todo, remaining = remaining[ready], remaining[~ready]
        up = number[parent[todo]].astype(np.int64)
    return Paths(number, tuple(up_of), tuple(labels))
