# SPDX-License-Identifier: Apache-2.0
"""How far the median of a few noisy steps can be trusted.

Three things make steps differ: chance from step to step, which the bootstrap of the median knows; moods that
last for several steps, so that ten slow ones in a row are less than ten witnesses; and everything that one
run does otherwise than the next, which only several recordings of a side can show.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64

# With three steps a side, two sides that do not overlap at all still happen by chance in 2 of C(6,3) = 20
# cases; with four in 2 of 70. Below that no interval at 95 % means anything.
MIN_STEPS = 4
CONFIDENCE_FRAC = 0.95
_FEW_STEPS = 5
"""with fewer, a difference is one only where the sides do not overlap at all"""
_DRAWS = 2000
_MAX_DRAWN = 2000
_MAX_CELLS = 400_000  # of one matrix of draws: keeps long recordings fast
_SEED = 20_260
_MOST_ALIKE = 0.8
"""neighbouring steps are not taken to be more alike than this: intervals become three times as wide"""
# Student's t at 97.5 % by degrees of freedom from 1; beyond, close enough to its limit's expansion.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.960


@dataclass(frozen=True, slots=True)
class Interval:
    """The 95 % confidence interval of a value."""

    low_ns: int
    high_ns: int

    def contains(self, value_ns: float) -> bool:
        return self.low_ns <= value_ns <= self.high_ns


def median_ns(values: I64) -> int:
    """The median in whole nanoseconds."""
    return int(np.median(values)) if len(values) else 0


class Sample:
    """The steps of one side, each with the recording it comes from: draws of their medians.

    Steps are drawn again and again, with replacement: the bootstrap of the median. Of several recordings
    these are drawn first, and then steps from each that came up. Every row of a comparison sees the same
    draws, and so does every call with the same steps.
    """

    def __init__(self, capture_of_step: I32, seed: int) -> None:
        generator = np.random.default_rng(_SEED + seed)
        self._capture = capture_of_step
        size = np.bincount(capture_of_step)
        self._size, self._first = size, np.cumsum(size) - size
        steps = len(capture_of_step)
        # From very many steps fewer are drawn than there are: that makes intervals wider, never narrower.
        drawn_steps = min(steps, _MAX_DRAWN)
        draws = min(_DRAWS, _MAX_CELLS // drawn_steps)
        each = -(-drawn_steps // len(size))
        capture = np.repeat(generator.integers(0, len(size), (draws, len(size))), each, axis=1)
        drawn = (generator.random(capture.shape) * size[capture]).astype(np.int64)
        self._rows = self._first[capture] + drawn

    def __len__(self) -> int:
        return len(self._capture)

    @property
    def captures(self) -> int:
        return len(self._size)

    def medians(self, values: I64) -> npt.NDArray[np.float64]:
        """The median of `values` (one per step) in every draw; around their median they are spread as much
        wider as neighbouring steps are alike.
        """
        middle = float(np.median(values))
        found: npt.NDArray[np.float64] = np.median(values[self._rows], axis=1)
        alike = min(max(self._alike(values), 0.0), _MOST_ALIKE)
        return np.asarray(middle + (found - middle) * np.sqrt((1 + alike) / (1 - alike)))

    def capture_medians(self, values: I64) -> npt.NDArray[np.float64]:
        """The median of each recording."""
        parts = np.split(values, self._first[1:])
        return np.array([np.median(part) for part in parts])

    def _alike(self, values: I64) -> float:
        """How much a step resembles the one before it in its recording: the correlation of their ranks,
        corrected for what few steps hide.
        """
        steps = len(values)
        if steps <= 3:
            return 0.0
        own = values - np.repeat(self.capture_medians(values), self._size)
        _, which, times = np.unique(own, return_inverse=True, return_counts=True)
        rank = (np.cumsum(times) - times / 2)[which] - steps / 2  # what is equal shares its rank
        squares = float((rank * rank).sum())
        within = self._capture[1:] == self._capture[:-1]
        found = float((rank[1:] * rank[:-1])[within].sum()) / squares if squares else 0.0
        return (steps * found + 1) / (steps - 3)


def interval(sample: Sample, values: I64) -> Interval:
    """The interval of the median of one side."""
    draws = sample.medians(values)
    if len(sample) < _FEW_STEPS:
        low, high = float(values.min()), float(values.max())
    else:
        low, high = _middle(draws)
    reach = _between_runs((sample.capture_medians(values),))
    middle = float(np.median(values))
    return _rounded(min(low, middle - reach), max(high, middle + reach))


def change_interval(before: Sample, before_ns: I64, after: Sample, after_ns: I64) -> Interval:
    """Where the change of the median lies: the sides were drawn apart, a draw of one meets one of the
    other.
    """
    theirs, ours = before.medians(before_ns), after.medians(after_ns)
    if min(len(before), len(after)) < _FEW_STEPS:
        low = float(after_ns.min()) - float(before_ns.max())
        high = float(after_ns.max()) - float(before_ns.min())
    else:
        draws = min(len(theirs), len(ours))
        low, high = _middle(ours[:draws] - theirs[:draws])
    reach = _between_runs((before.capture_medians(before_ns), after.capture_medians(after_ns)))
    change = float(np.median(after_ns)) - float(np.median(before_ns))
    return _rounded(min(low, change - reach), max(high, change + reach))


def _between_runs(sides: tuple[npt.NDArray[np.float64], ...]) -> float:
    """How far the difference of the sides may be off because runs differ: Student's interval over the medians
    of the recordings, with one spread for both sides. 0 where no side has two recordings: unknown.
    """
    freedom = sum(len(side) - 1 for side in sides)
    if not freedom:
        return 0.0
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    return student(freedom) * float(np.sqrt(squares / freedom * sum(1 / len(side) for side in sides)))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to three thousandths or better."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _middle(draws: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The middle 95 % of what the draws gave."""
    tail = 50 * (1 - CONFIDENCE_FRAC)
    low, high = np.percentile(draws, (tail, 100 - tail))
    return float(low), float(high)


def _rounded(low: float, high: float) -> Interval:
    return Interval(int(np.floor(low)), int(np.ceil(high)))
