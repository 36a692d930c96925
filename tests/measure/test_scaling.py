# SPDX-License-Identifier: Apache-2.0
"""Efficiencies and fits: what times were made of is found, with an error that covers the truth."""

from __future__ import annotations

import random

import pytest

from profiling_lab.errors import NotEnoughDataError
from profiling_lab.measure.scaling import (
    ScalingPoint,
    amdahl,
    amdahl_speedup,
    gustafson,
    points_of,
    strong_efficiency,
    weak_efficiency,
)

T1 = 40_000_000


def strong(
    serial: float, gpus: tuple[int, ...], noise: float = 0.0, seed: int = 0
) -> tuple[ScalingPoint, ...]:
    chance = random.Random(seed)
    return points_of(
        {
            n: [round(T1 * (serial + (1 - serial) / n) * chance.gauss(1, noise)) for _ in range(15)]
            for n in gpus
        }
    )


def weak(serial: float, gpus: tuple[int, ...], noise: float = 0.0, seed: int = 0) -> tuple[ScalingPoint, ...]:
    chance = random.Random(seed)
    return points_of(
        {
            n: [round(T1 * n / (n - serial * (n - 1)) * chance.gauss(1, noise)) for _ in range(15)]
            for n in gpus
        }
    )


@pytest.mark.parametrize("gpus", [(1, 2), (1, 2, 4), (1, 2, 4, 8)])
@pytest.mark.parametrize("serial", [0.0, 0.05, 0.25, 0.9])
def test_the_serial_part_is_found(serial: float, gpus: tuple[int, ...]) -> None:
    for fit in (amdahl(strong(serial, gpus)), gustafson(weak(serial, gpus))):
        assert fit.serial_frac == pytest.approx(serial, abs=1e-6)
        assert fit.points == len(gpus)
        assert (fit.misfit_frac is None) == (len(gpus) == 2), "two points test nothing"


@pytest.mark.parametrize("gpus", [(1, 2), (1, 2, 4)])
@pytest.mark.parametrize(("fit", "made"), [(amdahl, strong), (gustafson, weak)])
def test_the_error_is_as_large_as_the_scatter(fit: object, made: object, gpus: tuple[int, ...]) -> None:
    """Of many noisy measurements about two thirds lie within a standard error, nearly all within three."""
    found = [fit(made(0.25, gpus, 0.02, seed)) for seed in range(200)]  # type: ignore[operator]
    off = [abs(each.serial_frac - 0.25) / each.error_frac for each in found]
    assert 0.5 < sum(each < 1 for each in off) / len(off) < 0.95
    assert sum(each < 3 for each in off) / len(off) > 0.95


def test_three_points_show_that_the_law_does_not_hold() -> None:
    points = points_of({1: [T1] * 5, 2: [round(0.5 * T1)] * 5, 4: [round(0.6 * T1)] * 5})
    fit = amdahl(points)
    assert fit.misfit_frac is not None and fit.misfit_frac > 0.1
    assert fit.error_frac > 0.05, "the misfit is in the error"
    assert "3 points, at most" in str(fit)
    assert "two points: the law itself is not tested" in str(amdahl(points[:2]))


def test_efficiencies() -> None:
    assert strong_efficiency(strong(0.25, (1, 2, 4))) == pytest.approx({1: 1, 2: 0.8, 4: 1 / 1.75}, rel=1e-6)
    times = points_of({1: [100, 100], 2: [125, 125]})
    assert weak_efficiency(times) == {1: 1.0, 2: 0.8}
    assert amdahl_speedup(0.25, 8) == pytest.approx(1 / (0.25 + 0.75 / 8))
    assert amdahl_speedup(0.0, 8) == 8


def test_faster_than_proportional_is_said_as_it_is() -> None:
    assert amdahl(points_of({1: [T1] * 5, 2: [round(0.45 * T1)] * 5})).serial_frac < 0


def test_equal_samples_are_not_exact() -> None:
    assert amdahl(strong(0.25, (1, 2))).error_frac > 0
    assert ScalingPoint(1, (5,)).error_ns > 0


@pytest.mark.parametrize("samples", [{}, {1: [5]}, {2: [5], 4: [3]}, {1: [5], 2: []}, {1: [5], 2: [0]}])
def test_without_one_gpu_and_several_there_is_no_scaling(samples: dict[int, list[int]]) -> None:
    with pytest.raises(NotEnoughDataError, match="expected times on 1 GPU and on more than one"):
        points_of(samples)
