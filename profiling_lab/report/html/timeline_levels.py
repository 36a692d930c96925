# SPDX-License-Identifier: Apache-2.0
"""Levels of detail: what a lane of the timeline looks like from afar, as buckets of equal width.

A page that shows all of a million events at once has a thousand pixels for them. Each level cuts the span
into 4 times as many buckets as the level before; a bucket knows how busy the lane was, how many events began
in it, and which of them is the one to show. Buckets in which nothing happened are left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64

COARSEST = 1024
FINEST = 1 << 18
FACTOR = 4
FULL = 255
"""the busy share of a bucket is rounded to this many levels"""


@dataclass(frozen=True, slots=True)
class Level:
    """Buckets `width_ns` wide, in order; bucket i spans [i * width_ns, (i + 1) * width_ns)."""

    width_ns: int
    bucket: I64
    busy_ns: I64
    """the sum of the events' parts inside, at most `width_ns`"""
    count: I64
    """events that begin in it"""
    shown: I64
    """the event with the largest part of it"""
    shown_ns: I64
    """that part"""

    @property
    def busy(self) -> npt.NDArray[np.int64]:
        """0 to FULL, and never 0 where something happened."""
        return np.maximum(1, -(-self.busy_ns * FULL // self.width_ns))


def levels(start_ns: I64, end_ns: I64, span_ns: int, buckets: int) -> list[Level]:
    """The levels of a lane, the coarsest first; times count from the beginning of the span.

    `buckets`: of the finest level, which is made of the events; the others are made of the next finer one.
    Lanes with few events have no levels.
    """
    if not len(start_ns) or span_ns <= 0:
        return []
    finest = _finest(start_ns, end_ns, span_ns, buckets)
    out = [finest]
    while -(-span_ns // out[-1].width_ns) > COARSEST:
        out.append(_coarser(out[-1]))
    return out[::-1]


def buckets_for(events: int) -> int:
    """How many buckets the finest level of a lane deserves: about one for four events. 0: none at all."""
    if events <= COARSEST:
        return 0
    buckets = COARSEST
    while buckets * FACTOR <= min(events // 2, FINEST):
        buckets *= FACTOR
    return buckets


def _finest(start_ns: I64, end_ns: I64, span_ns: int, buckets: int) -> Level:
    while True:
        width_ns = max(1, -(-span_ns // buckets))
        first = start_ns // width_ns
        last = np.maximum(first, (end_ns - 1) // width_ns)
        touched = last - first + 1
        # Long events that overlap each other touch many buckets each.
        if touched.sum() <= 4 * (len(start_ns) + buckets) or buckets <= COARSEST:
            break
        buckets //= FACTOR
    event = np.repeat(np.arange(len(start_ns)), touched)
    step = np.arange(len(event)) - np.repeat(np.cumsum(touched) - touched, touched)
    bucket = first[event] + step
    low, high = bucket * width_ns, (bucket + 1) * width_ns
    part_ns = np.minimum(end_ns[event], high) - np.maximum(start_ns[event], low)
    begins = (step == 0).astype(np.int64)
    return _grouped(width_ns, bucket, np.maximum(part_ns, 0), begins, event, np.maximum(part_ns, 0))


def _coarser(level: Level) -> Level:
    return _grouped(
        level.width_ns * FACTOR,
        level.bucket // FACTOR,
        level.busy_ns,
        level.count,
        level.shown,
        level.shown_ns,
    )


def _grouped(width_ns: int, bucket: I64, busy_ns: I64, count: I64, shown: I64, shown_ns: I64) -> Level:
    """Sum up rows by bucket; the row with the largest part is the one to show."""
    order = np.lexsort((shown_ns, bucket))
    ordered = bucket[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
    starts = np.concatenate([[0], ends[:-1] + 1])
    best = order[ends]
    return Level(
        width_ns,
        ordered[ends],
        np.minimum(np.add.reduceat(busy_ns[order], starts), width_ns),
        np.add.reduceat(count[order], starts),
        shown[best],
        shown_ns[best],
    )
