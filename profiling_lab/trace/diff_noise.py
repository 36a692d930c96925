# SPDX-License-Identifier: Apache-2.0
"""How far the median of a few noisy steps can be trusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.columns import I32, I64

# With three steps a side, two sides that do not overlap at all still happen by chance in 2 of C(6,3) = 20
# cases; with four in 2 of 70. Below that no interval at 95 % means anything.
MIN_STEPS = 4
CONFIDENCE_FRAC = 0.95
_DRAWS = 2000
_MAX_DRAWN = 2000
_MAX_CELLS = 400_000  # of one matrix of draws: keeps long recordings fast
_SEED = 20_260


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a value lies with a confidence of 95 %."""

    low_ns: int
    high_ns: int

    def contains(self, value_ns: float) -> bool:
        return self.low_ns <= value_ns <= self.high_ns


def median_ns(values: I64) -> int:
    """The median in whole nanoseconds."""
    return int(np.median(values)) if len(values) else 0


class Resampled:
    """Draws steps again and again, with replacement: the bootstrap of the median of one side.

    Several recordings of a side are drawn first, and then steps from each that came up: runs differ by more
    than the steps of one run do. Every row sees the same draws, and so does every call with the same steps.
    """

    def __init__(self, capture_of_step: I32, seed: int) -> None:
        generator = np.random.default_rng(_SEED + seed)
        size = np.bincount(capture_of_step)
        first = np.cumsum(size) - size
        steps = len(capture_of_step)
        # From very many steps fewer are drawn than there are: that makes intervals wider, never narrower.
        drawn_steps = min(steps, _MAX_DRAWN)
        draws = min(_DRAWS, _MAX_CELLS // drawn_steps)
        each = -(-drawn_steps // len(size))
        capture = np.repeat(generator.integers(0, len(size), (draws, len(size))), each, axis=1)
        drawn = (generator.random(capture.shape) * size[capture]).astype(np.int64)
        self._rows = first[capture] + drawn

    def medians(self, values: I64) -> npt.NDArray[np.float64]:
        """The median of `values` (one per step) in every draw."""
        found: npt.NDArray[np.float64] = np.median(values[self._rows], axis=1)
        return found


def interval(medians: npt.NDArray[np.float64]) -> Interval:
    """The middle 95 % of what the draws gave."""
    tail = 50 * (1 - CONFIDENCE_FRAC)
    low, high = np.percentile(medians, (tail, 100 - tail))
    return Interval(int(np.floor(low)), int(np.ceil(high)))


def change_interval(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> Interval:
    """The same for after minus before: the sides were drawn apart, a draw of one meets one of the other."""
    draws = min(len(before), len(after))
    return interval(after[:draws] - before[:draws])
