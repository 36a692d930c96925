# SPDX-License-Identifier: Apache-2.0
"""The statistics of a comparison against simulated noise: how often chance alone makes a verdict, and how
often a change of 5 % gets one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from profiling_lab.analysis.diff.noise import Interval, Sample, change_interval, interval, student
from profiling_lab.trace.columns import I64

STEP = 100e6
Draw: TypeAlias = Callable[[np.random.Generator, int], np.ndarray]


def normal(spread: float) -> Draw:
    return lambda generator, steps: generator.normal(STEP, spread * STEP, steps)


def with_spikes(generator: np.random.Generator, steps: int) -> np.ndarray:
    """Each tenth step is half as long again: checkpoints, garbage collection."""
    return generator.normal(STEP, 0.02 * STEP, steps) + (generator.random(steps) < 0.1) * 0.5 * STEP


def skewed(generator: np.random.Generator, steps: int) -> np.ndarray:
    return STEP * np.exp(generator.normal(0, 0.05, steps))


def moody(generator: np.random.Generator, steps: int) -> np.ndarray:
    """Neighbouring steps are alike: clocks, temperature, other users of the machine."""
    found = generator.normal(0, 0.02 * STEP, steps)
    for i in range(1, steps):
        found[i] += 0.5 * found[i - 1]
    return STEP + found


def verdicts(
    draw: Draw, steps: int, *, change: float = 0.0, captures: int = 1, between: float = 0.0, trials: int = 200
) -> float:
    """How often the interval of the change leaves 0 out."""
    generator = np.random.default_rng(steps * 1000 + captures)
    capture = np.repeat(np.arange(captures, dtype=np.int32), steps)
    samples = Sample(capture, 0), Sample(capture, 1)

    def side(middle: float) -> I64:
        runs = [draw(generator, steps) + generator.normal(middle, between * STEP) for _ in range(captures)]
        return np.concatenate(runs).astype(np.int64)

    out = 0
    for _ in range(trials):
        found = change_interval(samples[0], side(0.0), samples[1], side(change * STEP))
        out += not found.contains(0)
    return out / trials


# 5 % of 200 is 10; a true rate of 5 % gives more than 16 once in 50 times, a rate of 10 % nearly always.
AT_MOST = 0.08


@pytest.mark.parametrize("steps", [4, 5, 6, 10, 20])
@pytest.mark.parametrize("draw", [normal(0.03), with_spikes, skewed], ids=["normal", "spikes", "skewed"])
def test_chance_alone_makes_no_verdict(draw: Draw, steps: int) -> None:
    assert verdicts(draw, steps) <= AT_MOST


def test_chance_alone_makes_no_verdict_over_all() -> None:
    """Where the single tests must leave room for luck, their sum need not."""
    draws = (normal(0.03), with_spikes, skewed)
    rates = [verdicts(draw, steps, trials=150) for draw in draws for steps in (4, 5, 6, 8, 12, 20)]
    assert np.mean(rates) <= 0.05, rates


@pytest.mark.parametrize("steps", [6, 12, 30])
def test_drift_over_several_steps_makes_none_either(steps: int) -> None:
    assert verdicts(moody, steps) <= 0.1


@pytest.mark.parametrize(("captures", "between"), [(2, 0.05), (3, 0.05), (3, 0.0), (5, 0.02)])
def test_runs_that_differ_make_none(captures: int, between: float) -> None:
    assert verdicts(normal(0.01), 8, captures=captures, between=between) <= AT_MOST


def test_one_run_a_side_cannot_know_how_runs_differ() -> None:
    """Why the report says so: the same noise, seen once, looks like a change."""
    assert verdicts(normal(0.01), 8, captures=1, between=0.05) > 0.5


@pytest.mark.parametrize(
    ("spread", "steps", "captures", "power"),
    [(0.01, 5, 1, 0.8), (0.01, 10, 1, 0.95), (0.02, 20, 1, 0.95), (0.03, 50, 1, 0.95), (0.02, 10, 3, 0.95),
     (0.01, 10, 2, 0.8)],
)  # fmt: skip
def test_a_change_of_5_percent_is_seen(spread: float, steps: int, captures: int, power: float) -> None:
    assert verdicts(normal(spread), steps, captures=captures, change=0.05) >= power


def test_intervals_cover_the_truth() -> None:
    generator = np.random.default_rng(1)
    samples = Sample(np.zeros(20, np.int32), 0), Sample(np.zeros(20, np.int32), 1)
    missed = missed_after = 0
    for _ in range(200):
        before, after = (generator.normal(1e6 + shift, 2e4, 20).astype(np.int64) for shift in (0, 1e4))
        missed += not change_interval(samples[0], before, samples[1], after).contains(1e4)
        missed_after += not interval(samples[1], after).contains(1.01e6)
    assert missed <= 16 and missed_after <= 20


def test_four_steps_differ_only_where_they_do_not_overlap() -> None:
    capture = np.zeros(4, np.int32)
    before, after = np.array([10, 11, 12, 13]), np.array([13, 14, 15, 16])
    assert change_interval(Sample(capture, 0), before, Sample(capture, 1), after) == Interval(0, 6)
    assert change_interval(Sample(capture, 0), before, Sample(capture, 1), after + 1) == Interval(1, 7)


def test_draws_are_the_same_every_time() -> None:
    values = np.arange(7) * 1000
    found = [interval(Sample(np.zeros(7, np.int32), 0), values) for _ in range(2)]
    assert found[0] == found[1] and found[0].low_ns < 3000 < found[0].high_ns


def test_equal_steps_have_an_interval_without_width() -> None:
    same = np.full(9, 500)
    sample = Sample(np.zeros(9, np.int32), 0)
    assert interval(sample, same) == Interval(500, 500)
    assert change_interval(sample, same, sample, same + 7) == Interval(7, 7)


def test_long_recordings_are_drawn_from_in_bounded_memory() -> None:
    values = np.random.default_rng(3).permutation(100_000)
    medians = Sample(np.zeros(100_000, np.int32), 0).medians(values)
    assert len(medians) == 200 and abs(np.median(medians) - 50_000) < 2000


def test_student() -> None:
    """From tables."""
    known = {1: 12.706, 2: 4.303, 10: 2.228, 11: 2.201, 15: 2.131, 30: 2.042, 1000: 1.962}
    assert {freedom: round(student(freedom), 3) for freedom in known} == pytest.approx(known, abs=0.003)
