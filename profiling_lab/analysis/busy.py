# SPDX-License-Identifier: Apache-2.0
"""When the GPUs of one process worked, and when they waited."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.spans import Spans

_BLEED_NS = 1000  # clocks of host and GPU are aligned no better than this
Rows: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Busy:
    """The union of operations that took time: sorted, disjoint. Before the first and after the last nothing
    is idle.

    Time of which nothing is known may be in it too: it is neither idle nor part of the span.
    """

    start_ns: I64
    end_ns: I64
    unknown_ns: int = 0

    @classmethod
    def of(cls, start_ns: I64, end_ns: I64) -> Busy:
        return cls(*_analysis.merged(np.ascontiguousarray(start_ns), np.ascontiguousarray(end_ns)))

    def filled(self, unknown: Spans) -> Busy:
        """The same with the parts of `unknown` that lie between the first operation and the last."""
        if not len(self.start_ns) or not len(unknown):
            return self
        first, last = self.start_ns[:1], self.end_ns[-1:]
        starts, ends = unknown.start_ns.clip(first, last), unknown.end_ns.clip(first, last)
        busy = Busy.of(np.concatenate([self.start_ns, starts]), np.concatenate([self.end_ns, ends]))
        return replace(busy, unknown_ns=busy.total_ns - self.total_ns)

    @property
    def total_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum()) - self.unknown_ns

    @property
    def span_ns(self) -> int:
        """From the first operation to the last."""
        return int(self.end_ns[-1] - self.start_ns[0]) - self.unknown_ns if len(self.start_ns) else 0

    @property
    def idle_ns(self) -> int:
        return self.span_ns - self.total_ns

    @property
    def idle_frac(self) -> float:
        return self.idle_ns / self.span_ns if self.span_ns else 0.0

    def without_long_gaps(self, long_ns: float) -> tuple[int, int]:
        """Idle time and the span, both without the gaps of `long_ns` and more."""
        gaps_ns = self.start_ns[1:] - self.end_ns[:-1]
        left_out = int(gaps_ns[gaps_ns >= long_ns].sum())
        return self.idle_ns - left_out, self.span_ns - left_out

    def before(self, time_ns: I64) -> I64:
        """Busy time before each moment."""
        done = np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)])
        row = np.searchsorted(self.start_ns, time_ns, "right")
        over = np.where(row > 0, self.end_ns[np.maximum(row, 1) - 1] - time_ns, 0)
        return np.asarray(done[row] - np.maximum(over, 0), dtype=np.int64)

    def without(self, other: Busy) -> Busy:
        """Where this is busy and the other is not."""
        edges = unique(np.concatenate([self.start_ns, self.end_ns, other.start_ns, other.end_ns]))
        mine = self.holds(edges[:-1]) & ~other.holds(edges[:-1])
        return Busy.of(edges[:-1][mine], edges[1:][mine])

    def busy_within(self, start_ns: I64, end_ns: I64) -> I64:
        """Busy time inside of each interval."""
        if not len(self.start_ns):
            return np.zeros(len(start_ns), dtype=np.int64)
        return np.asarray(self.before(end_ns) - self.before(start_ns), dtype=np.int64)

    def holds(self, time_ns: I64) -> npt.NDArray[np.bool_]:
        """Per moment, whether it is busy."""
        row = np.searchsorted(self.start_ns, time_ns, "right") - 1
        return np.asarray((row >= 0) & (time_ns < np.append(self.end_ns, 0)[row]))

    def idle_within(self, start_ns: I64, end_ns: I64) -> I64:
        """Idle time inside of each interval."""
        if not len(self.start_ns):
            return np.zeros(len(start_ns), dtype=np.int64)
        start_ns = np.clip(start_ns, self.start_ns[0], self.end_ns[-1])
        end_ns = np.clip(end_ns, self.start_ns[0], self.end_ns[-1])
        return np.asarray(end_ns - start_ns - (self.before(end_ns) - self.before(start_ns)), dtype=np.int64)

    def gap_at(self, time_ns: I64) -> Rows:
        """Per moment the number of the gap that holds it, at the precision of the clocks; -1 none."""
        row = np.searchsorted(self.start_ns, time_ns + _BLEED_NS, "right")
        inside = (row > 0) & (row < len(self.start_ns))
        inside[inside] = self.end_ns[row[inside] - 1] <= time_ns[inside] + _BLEED_NS
        return np.where(inside, row - 1, -1)

    def gaps_around(self, start_ns: I64, end_ns: I64) -> tuple[Rows, I64, I64]:
        """The gaps around the ends of intervals: (interval, where its idle time begins, the gap's end).

        A gap is charged once, to the first interval that ends in it.
        """
        gap = self.gap_at(end_ns)
        rows = np.flatnonzero(gap >= 0)
        rows = rows[np.argsort(end_ns[rows], kind="stable")]
        _, first = np.unique(gap[rows], return_index=True)
        rows = rows[first]
        begins = np.maximum(self.end_ns[gap[rows]], start_ns[rows])
        return rows, begins, np.maximum(self.start_ns[gap[rows] + 1], begins)

    def gap_around(self, start_ns: I64, end_ns: I64) -> I64:
        """Per interval, the idle time since its start in the gap around its end (`gaps_around`)."""
        rows, begins, ends = self.gaps_around(start_ns, end_ns)
        cost = np.zeros(len(start_ns), dtype=np.int64)
        cost[rows] = ends - begins
        return cost
