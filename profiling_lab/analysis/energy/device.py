# SPDX-License-Identifier: Apache-2.0
"""The energy of one GPU: in all, and by part of the program with error bars."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.energy.counter import Counter
from profiling_lab.analysis.energy.fit import F64, PowerFit, fit, student
from profiling_lab.analysis.energy.shares import passed_ns
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64

LEAST_INTERVALS = 40
"""of the counter, with fewer nothing is fitted"""
INTERVALS_PER_PART = 4
MOST_SPREAD_FRAC = 0.05
"""of the period: where changes are known less well, the fit is biased by more than its error bars say"""
MOST_ERROR_FRAC = 0.25
"""a power that is known less well is not told"""
DELAY_NS = 5e6
"""by which power follows work, a standard deviation: a copy loop after idle time 8 ms on an H200"""
LEAST_LAG, _MOST_LAG = -0.1, 1.5
"""periods by which the counter may be late; less than none if the reader always came late"""
_LAGS, _FINER_LAGS, _PASSES = 33, 9, 2
_EVIDENCE = 9.0
"""twice the logarithm of the ratio of likelihoods up to which a lag counts as possible: three deviations"""
_LONGEST_S = 30 * 86_400.0
"""a recording that would have to be longer is not asked for"""


@dataclass(frozen=True, slots=True)
class Known:
    """Power and energy of a part; `error_` is half of the interval of fit.CONFIDENCE_FRAC."""

    power_w: float
    error_w: float
    joules: float
    error_j: float
    needs_s: float | None
    """of a recording in which it could be told; None: not known, or never"""

    @property
    def is_told(self) -> bool:
        return self.error_w <= MOST_ERROR_FRAC * self.power_w


@dataclass(frozen=True, slots=True)
class Usage:
    """What ran on one GPU: operations with their part, below `parts`, within disjoint spans of time."""

    start_ns: I64
    end_ns: I64
    part: I32
    parts: int
    span_start_ns: I64
    span_end_ns: I64


@dataclass(frozen=True, slots=True)
class Fitted:
    """Of one GPU; the last part is idle time."""

    joules: float
    passed_s: F64
    """per part, in the time for which the energy is known"""
    parts: tuple[Known, ...]
    """() if nothing was fitted"""
    why_not: str
    lag_ns: float
    """the counter shows energy so long after it was used; 0 if nothing was fitted"""
    intervals: int


def energy_of(usage: Usage, counter: Counter, limit_w: float) -> Fitted:
    """limit_w: the power limit, 0 if unknown. The counter has at least two changes."""
    edges = _edges(usage, counter)
    intervals = sum(max(len(times) - 1, 0) for times in edges)
    period_s = counter.period_ns * 1e-9
    why = ""
    if counter.spread_ns > MOST_SPREAD_FRAC * counter.period_ns:
        why = (
            f"the time of a change is known to +/- {counter.spread_ns / 1e6:.1f} ms only, of the "
            f"{counter.period_ns / 1e6:.0f} ms between two; the program left the recorder too little time"
        )
    elif intervals < LEAST_INTERVALS:
        why = (
            f"the recording spans {intervals} intervals of the counter; to distinguish lines takes "
            f"{LEAST_INTERVALS} at least, {LEAST_INTERVALS * period_s:.0f} s"
        )
    if why:
        return Fitted(*_total(usage, counter, 0.0), (), why, 0.0, intervals)
    energy = np.concatenate([np.diff(counter.at(times)) for times in edges if len(times) > 1])
    most_w = max(limit_w, float((energy / _lengths_s(edges)).max()))
    lag, found = _fitted(usage, edges, energy, most_w / 2, counter.period_ns)
    joules, passed = _total(usage, counter, lag)
    total = max(float(found.power_w @ passed), 1e-12)
    known = [
        Known(
            power,
            error,
            power * s * joules / total,
            error * s,
            _needed_s(power, k, float(passed.sum()), most_w),
        )
        for power, error, k, s in zip(
            found.power_w.tolist(),
            found.error_w.tolist(),
            found.knowledge.tolist(),
            passed.tolist(),
            strict=True,
        )
    ]
    return Fitted(joules, passed, tuple(known), "", lag, intervals)


def _edges(usage: Usage, counter: Counter) -> list[F64]:
    """Per span the changes of the counter that lie inside with any lag."""
    most = _MOST_LAG * counter.period_ns
    return [
        counter.time_ns[(counter.time_ns >= start + most) & (counter.time_ns <= end)]
        for start, end in zip(usage.span_start_ns.tolist(), usage.span_end_ns.tolist(), strict=True)
    ]


def _lengths_s(edges: list[F64]) -> F64:
    return np.concatenate([np.diff(times) for times in edges if len(times) > 1]) * 1e-9


def _seconds(usage: Usage, edges: list[F64], lags: F64) -> F64:
    """[lags, intervals, parts + 1]"""
    used = [times for times in edges if len(times) > 1]
    at = np.concatenate([np.concatenate(used) - lag for lag in lags.tolist()])
    passed = passed_ns(usage.start_ns, usage.end_ns, usage.part, usage.parts, at)
    passed = passed.reshape(len(lags), -1, usage.parts + 1)
    ends = np.cumsum([len(times) for times in used])
    inner = np.delete(np.arange(ends[-1] - 1), ends[:-1] - 1)  # not from one span to the next
    return np.asarray(np.diff(passed, axis=1)[:, inner] * 1e-9)


def _fitted(
    usage: Usage, edges: list[F64], energy: F64, spread_w: float, period_ns: float
) -> tuple[float, PowerFit]:
    """The delay of the counter with which the fit leaves least, and the fit. Its error bars span those of all
    delays that explain the energies about as well.
    """
    lags = np.linspace(LEAST_LAG, _MOST_LAG, _LAGS) * period_ns
    fits = _fits(usage, edges, energy, spread_w, lags)
    step = lags[1] - lags[0]
    for _ in range(_PASSES):
        around = lags[_best(fits)] + np.linspace(-1, 1, _FINER_LAGS) * step
        lags = np.concatenate([lags, around])
        fits += _fits(usage, edges, energy, spread_w, around)
        step /= _FINER_LAGS // 2
    best = _best(fits)
    found = fits[best]
    most = found.misfit * np.exp(_EVIDENCE / len(energy))
    error = np.max([abs(x.power_w - found.power_w) + x.error_w for x in fits if x.misfit <= most], axis=0)
    return float(lags[best]), replace(found, error_w=error)


def _best(fits: list[PowerFit]) -> int:
    return int(np.argmin([each.misfit for each in fits]))


def _fits(usage: Usage, edges: list[F64], energy: F64, spread_w: float, lags: F64) -> list[PowerFit]:
    """Of each lag."""
    around = np.concatenate([lags, lags - DELAY_NS / 2, lags + DELAY_NS / 2])
    seconds, before, after = _seconds(usage, edges, around).reshape(3, len(lags), len(energy), -1)
    return [fit(s, energy, spread_w, b - a) for s, b, a in zip(seconds, before, after, strict=True)]


def _total(usage: Usage, counter: Counter, lag: float) -> tuple[float, F64]:
    """Joules and seconds per part in the spans, as far as the counter was read."""
    first, last = counter.time_ns[0] - lag, counter.time_ns[-1] - lag
    start = np.clip(usage.span_start_ns.astype(np.float64), first, last)
    end = np.clip(usage.span_end_ns.astype(np.float64), first, last)
    joules = float(counter.between(start + lag, end + lag).sum())
    at = np.concatenate([start, end])
    passed = passed_ns(usage.start_ns, usage.end_ns, usage.part, usage.parts, at)
    return joules, np.asarray((passed[len(start) :] - passed[: len(start)]).sum(axis=0) * 1e-9)


def _needed_s(power_w: float, knowledge: float, seconds: float, most_w: float) -> float | None:
    """How long a recording must be to tell this power: knowledge grows with its length."""
    wanted_sd = max(MOST_ERROR_FRAC * power_w / student(LEAST_INTERVALS), 1e-3)
    wanted = 1 / wanted_sd**2 - 1 / (most_w / 2) ** 2
    if knowledge <= 0:
        return None
    needed = seconds * wanted / knowledge
    return needed if needed <= _LONGEST_S else None
