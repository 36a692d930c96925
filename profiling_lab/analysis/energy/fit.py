# SPDX-License-Identifier: Apache-2.0
"""The power of each part of a program, fitted to the energy of many intervals that hold the parts in
different shares (Lang and Ruenger, Euro-Par 2013).

The energy of an interval is the sum over the parts of time times power. Unknown powers are pulled towards the
mean power of the recording, as weakly as the power limit of the GPU allows (ridge), and none is negative; the
sum over the parts is the counter's total, exactly. Power follows work with a delay of a few milliseconds that
depends on the work: each part's delay is fitted, too, within what is usual. Error bars have two sources:
chance, from leaving out one block of intervals after the other (jackknife), which notices noise that lasts,
such as heat and clocks; and the pull towards what is usual, which is all that is known of a part whose share
never changes.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass

F64: TypeAlias = npt.NDArray[np.float64]

BLOCKS = 24
CONFIDENCE_FRAC = 0.99
# Student's t at 99.5 % by degrees of freedom.
_STUDENT = {7: 3.499, 8: 3.355, 9: 3.250, 10: 3.169, 11: 3.106, 12: 3.055, 15: 2.947, 19: 2.861, 23: 2.807}
_PASSES = 4
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Moments:
    """What the fit needs of some intervals: sums of products. The columns behind the parts are delays."""

    square: F64
    """times by times"""
    cross: F64
    """times by energy"""
    energy_square: float
    seconds: F64
    """per part, 0 for a delay"""
    joules: float
    intervals: int
    parts: int

    @classmethod
    def of(cls, columns: F64, joules: F64, parts: int) -> Moments:
        seconds = columns.sum(axis=0)
        seconds[parts:] = 0.0
        square, cross = columns.T @ columns, columns.T @ joules
        return cls(square, cross, float(joules @ joules), seconds, float(joules.sum()), len(joules), parts)

    def without(self, other: Moments) -> Moments:
        return Moments(
            self.square - other.square,
            self.cross - other.cross,
            self.energy_square - other.energy_square,
            self.seconds - other.seconds,
            self.joules - other.joules,
            self.intervals - other.intervals,
            self.parts,
        )

    @property
    def mean_w(self) -> F64:
        """What each column is pulled towards."""
        mean = self.joules / max(float(self.seconds.sum()), _TINY)
        return np.where(np.arange(len(self.seconds)) < self.parts, mean, 0.0)


@dataclass(frozen=True, slots=True)
class PowerFit:
    """Per part."""

    power_w: F64
    error_w: F64
    """half of the interval of CONFIDENCE_FRAC"""
    knowledge: F64
    """how much the intervals add to what the power limit says, in 1 / W^2: it grows with their number"""
    noise_j: float
    """of the energy of one interval, a standard deviation"""
    misfit: float
    """the squared residuals and how unusual the powers are, to compare fits to the same energies"""


def student(freedom: int) -> float:
    """The 99.5 % quantile of Student's t, rounded up to the next entry of the table."""
    return _STUDENT[max((known for known in _STUDENT if known <= freedom), default=min(_STUDENT))]


def fit(seconds: F64, joules: F64, spread_w: float, delays_s: F64) -> PowerFit:
    """seconds: [intervals, parts], whose rows sum to the lengths of the intervals; joules: per interval.
    spread_w: how far a part's power may be from the mean, a standard deviation. delays_s: [intervals, parts],
    how the seconds change if the power of a part follows its work later by a standard deviation.
    """
    parts = seconds.shape[1]
    columns = np.column_stack([seconds, delays_s])
    whole = Moments.of(columns, joules, parts)
    noise = _noise(whole, spread_w)
    power = _solved(whole, noise, spread_w)
    blocks = np.array_split(np.arange(len(joules)), min(BLOCKS, len(joules)))
    others = (whole.without(Moments.of(columns[rows], joules[rows], parts)) for rows in blocks)
    left_out = np.array([_solved(other, noise, spread_w) for other in others])
    chance = (len(blocks) - 1) / len(blocks) * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
    from_noise, from_pull = _variances(whole, noise, spread_w)
    variance = np.maximum(np.maximum(chance, from_noise) + from_pull, _TINY)[:parts]
    return PowerFit(
        power_w=power[:parts],
        error_w=student(len(blocks) - 1) * np.sqrt(variance),
        knowledge=np.maximum(1 / variance - 1 / spread_w**2, 0),
        noise_j=noise,
        misfit=_misfit(whole, power) + noise**2 * float((((power - whole.mean_w) / spread_w) ** 2).sum()),
    )


def _noise(whole: Moments, spread_w: float) -> float:
    """The noise of an interval's energy, by fitting with a guess and looking at what is left."""
    mean = whole.joules / max(whole.intervals, 1)
    noise = 0.05 * mean
    for _ in range(_PASSES):
        left = _misfit(whole, _solved(whole, noise, spread_w))
        freedom = max(whole.intervals - len(whole.seconds), 1)
        noise = max(float(np.sqrt(left / freedom)), 1e-4 * mean, 1e-9)
    return noise


def _misfit(whole: Moments, power: F64) -> float:
    return max(float(whole.energy_square - 2 * power @ whole.cross + power @ whole.square @ power), 0.0)


def _solved(m: Moments, noise: float, spread_w: float) -> F64:
    free = np.arange(len(m.seconds))
    while True:
        power = np.zeros(len(m.seconds))
        power[free] = _solved_free(m, free, noise, spread_w)
        lowest = int(power[: m.parts].argmin())
        if power[lowest] >= 0 or (free < m.parts).sum() <= 1:
            power[: m.parts] = np.maximum(power[: m.parts], 0)
            return power
        free = free[free != lowest]


def _solved_free(m: Moments, free: npt.NDArray[np.intp], noise: float, spread_w: float) -> F64:
    """The powers of some columns, where the others have none: least squares with the total as a condition."""
    size, seconds = len(free), m.seconds[free]
    scale = max(float(np.abs(seconds).max()), _TINY)
    weight = spread_w**2 / noise**2
    system = np.zeros((size + 1, size + 1))
    system[:size, :size] = m.square[np.ix_(free, free)] * weight + np.eye(size)
    system[:size, size] = system[size, :size] = seconds / scale
    right = np.append(m.cross[free] * weight + m.mean_w[free], m.joules / scale)
    return np.asarray(np.linalg.solve(system, right)[:size])


def _variances(m: Moments, noise: float, spread_w: float) -> tuple[F64, F64]:
    """Of each power: from the noise of the energies, and from the pull towards the mean."""
    information = m.square / noise**2
    covariance = np.linalg.inv(information + np.eye(len(m.seconds)) / spread_w**2)
    along = covariance @ m.seconds
    covariance -= np.outer(along, along) / max(float(m.seconds @ along), _TINY)
    from_noise = np.einsum("ij,jk,ki->i", covariance, information, covariance)
    from_pull = np.einsum("ij,ji->i", covariance, covariance) / spread_w**2
    return np.maximum(from_noise, 0), np.maximum(from_pull, 0)
