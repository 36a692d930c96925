# SPDX-License-Identifier: Apache-2.0
"""Times of one clock as those of another: an offset, and how much faster the other runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64


@dataclass(frozen=True, slots=True)
class ClockMove:
    by_ns: int
    rate: float = 0.0
    """by which the other clock runs faster: 1e-6 is a microsecond per second"""
    pivot_ns: int = 0
    """where the rate has no effect"""

    def __call__(self, times: I64) -> I64:
        if not self.rate:
            return times + self.by_ns
        grown: I64 = np.rint((times - self.pivot_ns) * self.rate).astype(np.int64)
        return times + self.by_ns + grown


def moved(times: I64, moves: Sequence[ClockMove]) -> I64:
    """By one move after the other, so that equal times stay equal."""
    for move in moves:
        times = move(times)
    return times
