# SPDX-License-Identifier: Apache-2.0
"""Statistics by key, and ranges projected onto the GPU, against the plain way to compute them."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab import _analysis


def of(values: list[int]) -> tuple[int, int, int, int, int, float]:
    """Statistics of one key."""
    key = np.zeros(len(values), dtype=np.int32)
    return tuple(
        column[0].item() for column in _analysis.statistics(key, np.array(values, dtype=np.int64), 1)
    )


@pytest.mark.parametrize(
    ("values", "median", "deviation"),
    [
        # Printed by `nsys stats` 2025.1.1 for three calls each: the others follow from the total.
        ([136770522, 2280, 136776274 - 136770522 - 2280], 3472.0, 78962837.2),
        ([92129, 2763, 101039 - 92129 - 2763], 6147.0, 50646.9),
        ([24415, 5092, 44824 - 24415 - 5092], 15317.0, 9667.0),
        ([3233, 4052], 3642.5, 579.1),
        ([43672], 43672.0, 0.0),
    ],
)
def test_the_definitions_of_nsys(values: list[int], median: float, deviation: float) -> None:
    """Of the sample (n - 1), and the middle of two in the middle."""
    total, count, shortest, longest, found_median, found_deviation = of(values)
    assert (total, count, shortest, longest) == (sum(values), len(values), min(values), max(values))
    assert found_median == int(median)
    assert found_deviation == pytest.approx(deviation, abs=0.06)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-(1 << 55), 1 << 55)), max_size=40))
def test_statistics_against_the_standard_library(rows: list[tuple[int, int]]) -> None:
    key = np.array([k for k, _ in rows], dtype=np.int32)
    value = np.array([v for _, v in rows], dtype=np.int64)
    total, count, shortest, longest, median, deviation = _analysis.statistics(key, value, 4)
    for k in range(4):
        mine = sorted(v for row, v in rows if row == k)
        assert (total[k], count[k]) == (sum(mine), len(mine))
        if not mine:
            assert shortest[k] == longest[k] == median[k] == deviation[k] == 0
            continue
        assert (shortest[k], longest[k]) == (mine[0], mine[-1])
        assert median[k] == (mine[(len(mine) - 1) // 2] + mine[len(mine) // 2]) // 2
        expected = statistics.stdev(mine) if len(mine) > 1 else 0.0
        assert deviation[k] == pytest.approx(expected, rel=1e-9)


def test_wrong_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="key 4 is not in"):
        _analysis.statistics(np.array([4], dtype=np.int32), np.array([1], dtype=np.int64), 4)


_INTERVAL = st.tuples(st.integers(0, 30), st.integers(0, 12))


@settings(max_examples=80)
@given(
    st.lists(st.tuples(_INTERVAL, st.integers(0, 1)), max_size=8),
    st.lists(st.tuples(_INTERVAL, st.integers(0, 1), _INTERVAL), max_size=10),
)
def test_projection_against_an_oracle(
    ranges: list[tuple[tuple[int, int], int]], launches: list[tuple[tuple[int, int], int, tuple[int, int]]]
) -> None:
    def column(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    first, last, busy, count = _analysis.project(
        column([s for (s, _), _ in ranges]),
        column([s + n for (s, n), _ in ranges]),
        np.array([t for _, t in ranges], dtype=np.int32),
        column([s for (s, _), _, _ in launches]),
        column([s + n for (s, n), _, _ in launches]),
        np.array([t for _, t, _ in launches], dtype=np.int32),
        column([100 + s for _, _, (s, _) in launches]),
        column([100 + s + n for _, _, (s, n) in launches]),
    )
    for i, ((start, length), thread) in enumerate(ranges):
        inside = [
            (100 + s, 100 + s + n)
            for (call, took), launcher, (s, n) in launches
            if launcher == thread and start <= call and call + took <= start + length
        ]
        assert count[i] == len(inside)
        assert first[i] == min((s for s, _ in inside), default=0)
        assert last[i] == max((e for _, e in inside), default=0)
        assert busy[i] == len({t for s, e in inside for t in range(s, e)})
