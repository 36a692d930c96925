# SPDX-License-Identifier: Apache-2.0
"""Efficiency on several GPUs, and the laws that are fitted to it.

Amdahl, for strong scaling (the same work on n GPUs): t(n) = t(1) (s + (1 - s) / n).
Gustafson, for weak scaling (n times the work on n GPUs): S(n) = n t(1) / t(n) = n - s (n - 1).

s is the part that more GPUs do not make shorter. Neither law knows of communication, so a fit counts what is
not hidden of it in s. Amdahl (AFIPS 1967), Gustafson (Communications of the ACM 31, 1988).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiling_lab.errors import NotEnoughDataError

_OF_THE_MEDIAN = 1.2533 / 1.349
"""standard error of a median by the interquartile range and the root of the number, for normal errors"""
_LEAST_ERROR_FRAC = 1e-4
"""of a time: samples that are all equal are not exact"""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The step on a number of GPUs."""

    gpus: int
    samples_ns: tuple[int, ...]
    """each the slowest rank's"""

    @property
    def median_ns(self) -> float:
        return statistics.median(self.samples_ns)

    @property
    def error_ns(self) -> float:
        """The standard error of the median."""
        least = _LEAST_ERROR_FRAC * self.median_ns
        if len(self.samples_ns) < 3:
            return least
        first, _, third = statistics.quantiles(self.samples_ns, n=4, method="inclusive")
        return max(_OF_THE_MEDIAN * (third - first) / math.sqrt(len(self.samples_ns)), least)


@dataclass(frozen=True, slots=True)
class SerialFit:
    """s of a law."""

    serial_frac: float
    error_frac: float
    """its standard error, from the scatter of the samples, and from the misfit where there is one"""
    points: int
    misfit_frac: float | None
    """by how much the law misses a measured time at most. None for two points: any law goes through them, so
    they say nothing about whether it holds
    """

    def __str__(self) -> str:
        """`s = 24.8 % +- 0.3 % (two points: the law itself is not tested)`"""
        text = f"s = {100 * self.serial_frac:.1f} % +- {100 * self.error_frac:.1f} %"
        if self.misfit_frac is None:
            return f"{text} (two points: the law itself is not tested)"
        return f"{text} ({self.points} points, at most {100 * self.misfit_frac:.1f} % off)"


def points_of(samples_ns: Mapping[int, Sequence[int]]) -> tuple[ScalingPoint, ...]:
    """By the number of GPUs. Raises NotEnoughDataError without 1 GPU, several, and samples of each."""
    points = tuple(ScalingPoint(gpus, tuple(samples_ns[gpus])) for gpus in sorted(samples_ns))
    if len(points) < 2 or points[0].gpus != 1 or not all(p.samples_ns and p.median_ns > 0 for p in points):
        there = ", ".join(str(point.gpus) for point in points) or "nothing"
        raise NotEnoughDataError(f"expected times on 1 GPU and on more than one, got times on {there}")
    return points


def strong_efficiency(points: Sequence[ScalingPoint]) -> dict[int, float]:
    """t(1) / (n t(n)) by n."""
    return {point.gpus: points[0].median_ns / (point.gpus * point.median_ns) for point in points}


def weak_efficiency(points: Sequence[ScalingPoint]) -> dict[int, float]:
    """t(1) / t(n) by n, where the work is n times that of one GPU."""
    return {point.gpus: points[0].median_ns / point.median_ns for point in points}


def amdahl(points: Sequence[ScalingPoint]) -> SerialFit:
    """The line t = a + b / n by weighted least squares; s = a / (a + b)."""
    sums = [0.0] * 5
    for point in points:
        weight, x, y = point.error_ns**-2, 1 / point.gpus, point.median_ns
        for i, value in enumerate((1.0, x, x * x, y, x * y)):
            sums[i] += weight * value
    one, x, xx, y, xy = sums
    determinant = one * xx - x * x
    a, b = (xx * y - x * xy) / determinant, (one * xy - x * y) / determinant
    whole = a + b
    by_a, by_b = b / whole**2, -a / whole**2
    variance = (by_a**2 * xx - 2 * by_a * by_b * x + by_b**2 * one) / determinant
    expected = {point.gpus: a + b / point.gpus for point in points}
    return _fit(points, a / whole, variance, expected, freedom=len(points) - 2)


def gustafson(points: Sequence[ScalingPoint]) -> SerialFit:
    """n - S(n) = s (n - 1) by weighted least squares; points: of weak scaling."""
    first = points[0]
    over = under = 0.0
    for point in points[1:]:
        scaled = point.gpus * first.median_ns / point.median_ns
        error = scaled * math.hypot(first.error_ns / first.median_ns, point.error_ns / point.median_ns)
        over += (point.gpus - 1) * (point.gpus - scaled) / error**2
        under += (point.gpus - 1) ** 2 / error**2
    serial = over / under
    expected = {p.gpus: p.gpus * first.median_ns / (p.gpus - serial * (p.gpus - 1)) for p in points}
    return _fit(points, serial, 1 / under, expected, freedom=len(points) - 2)


def amdahl_speedup(serial_frac: float, gpus: int) -> float:
    """1 / (s + (1 - s) / n)"""
    return 1 / (serial_frac + (1 - serial_frac) / gpus)


def _fit(
    points: Sequence[ScalingPoint],
    serial: float,
    variance: float,
    expected: Mapping[int, float],
    freedom: int,
) -> SerialFit:
    if freedom < 1:
        return SerialFit(serial, math.sqrt(variance), len(points), None)
    misses = [(point.median_ns - expected[point.gpus]) / point.error_ns for point in points]
    scatter = max(sum(miss**2 for miss in misses) / freedom, 1.0)
    misfit = max(abs(point.median_ns / expected[point.gpus] - 1) for point in points)
    return SerialFit(serial, math.sqrt(variance * scatter), len(points), misfit)
