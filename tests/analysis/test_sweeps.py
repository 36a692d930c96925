# SPDX-License-Identifier: Apache-2.0
"""The sweeps behind steps, gaps and overlap against oracles that look at every nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling_lab import _analysis

HORIZON = 30
TRACKS = 2
CLASSES = 3

Row = tuple[int, int, int, int]  # start, length, track, class or lane or layer
rows = st.lists(
    st.tuples(
        st.integers(-5, HORIZON), st.integers(-2, HORIZON), st.integers(0, TRACKS - 1), st.integers(0, 2)
    ),
    max_size=12,
)


def columns(table: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    start, length, track, kind = np.array(table, dtype=np.int64).reshape(-1, 4).T
    return (
        start.copy(),
        start + length,
        track.astype(np.int32),
        kind.astype(np.int32),
    )


def covers(row: Row, track: int, time: int) -> bool:
    return row[2] == track and row[0] <= time < row[0] + row[1]


@given(rows, rows)
def test_time_by_set_of_busy_classes(operations: list[Row], windows: list[Row]) -> None:
    found = _analysis.set_time_ns(*columns(operations), *columns(windows)[:3], CLASSES)
    assert found.shape == (len(windows), 2**CLASSES)
    for i, (start, length, track, _) in enumerate(windows):
        expected = [0] * 2**CLASSES
        for time in range(start, start + length):
            busy = {row[3] for row in operations if covers(row, track, time)}
            expected[sum(1 << which for which in busy)] += 1
        assert found[i].tolist() == expected
        assert found[i].sum() == max(length, 0)


@given(rows)
def test_time_by_number_of_busy_lanes(operations: list[Row]) -> None:
    # A lane belongs to one track.
    start, end, track, kind = columns(operations)
    lane = (track * 3 + kind).astype(np.int32)
    busy, shared, levels = _analysis.lane_time_ns(start, end, track, lane, TRACKS, 3 * TRACKS)
    expected_busy, expected_shared = [0] * 6, [0] * 6
    expected_levels = [[0] * 3 for _ in range(TRACKS)]
    for t in range(TRACKS):
        for time in range(-10, 2 * HORIZON + 10):
            here = {t * 3 + row[3] for row in operations if covers(row, t, time)}
            for one in here:
                expected_busy[one] += 1
                expected_shared[one] += len(here) > 1
            if here:
                expected_levels[t][len(here) - 1] += 1
    assert busy.tolist() == expected_busy and shared.tolist() == expected_shared
    for level, expected in zip(levels, expected_levels, strict=True):
        assert level.tolist() + [0] * (3 - len(level)) == expected


@given(rows)
def test_gaps_are_what_no_operation_covers(operations: list[Row]) -> None:
    start, end, track, _ = columns(operations)
    found = list(zip(*(column.tolist() for column in _analysis.gaps_between(start, end, track)), strict=True))
    for t in range(TRACKS):
        mine = [row for row in operations if row[2] == t]
        first = min((row[0] for row in mine), default=0)
        last = max((row[0] + max(row[1], 0) for row in mine), default=0)
        idle = [time for time in range(first, last) if not any(covers(row, t, time) for row in mine)]
        assert [time for s, e, k, _ in found if k == t for time in range(s, e)] == idle
    for _, gap_end, gap_track, ends_it in found:
        row = operations[ends_it]
        assert row[2] == gap_track and row[0] == gap_end
        same = [i for i, r in enumerate(operations) if r[2] == gap_track and r[0] == gap_end]
        assert ends_it == same[0]


@given(rows, rows)
def test_pieces_tell_what_the_track_was_doing(windows: list[Row], activities: list[Row]) -> None:
    start, end, track, _ = columns(windows)
    window, piece_start, piece_end, winner = _analysis.cut_by_winners(start, end, track, *columns(activities))
    found: dict[int, list[tuple[int, int]]] = {i: [] for i in range(len(windows))}
    for w, s, e, who in zip(
        window.tolist(), piece_start.tolist(), piece_end.tolist(), winner.tolist(), strict=True
    ):
        assert s < e
        found[w] += [(time, who) for time in range(s, e)]
    for i, (s, length, t, _) in enumerate(windows):
        expected = []
        for time in range(s, s + length):
            around = [(row[3], row[0], j) for j, row in enumerate(activities) if covers(row, t, time)]
            expected.append((time, max(around)[2] if around else -1))
        assert found[i] == expected, "every moment once, in order"


def oracle_period(symbols: list[int]) -> int:
    """The most symbols that any period longer than one explains in one interval."""
    best = 0
    for length in range(2, len(symbols) // 3 + 1):
        for first in range(len(symbols)):
            last = first
            while last + length < len(symbols) and symbols[last] == symbols[last + length]:
                last += 1
            covered = last - first + length
            best = max(best, covered if covered >= 3 * length else 0)
    return best


@given(st.lists(st.integers(0, 3), max_size=24))
def test_a_period_is_real_and_explains_no_more_than_possible(symbols: list[int]) -> None:
    first, length, times = _analysis.period_of(np.array(symbols, dtype=np.int32))
    if length == 0:
        return
    part = symbols[first : first + length * times]
    assert times >= 3 and length > 1 and len(part) == length * times
    assert part == part[:length] * times
    assert length * times <= oracle_period(symbols)


@given(
    st.lists(st.integers(0, 3), max_size=5),
    st.lists(st.integers(4, 6), min_size=2, max_size=6),
    st.integers(3, 6),
)
def test_a_marked_period_is_found(before: list[int], body: list[int], times: int) -> None:
    step = [9, *body]  # 9 occurs once per step
    first, length, found = _analysis.period_of(np.array(before + step * times, dtype=np.int32))
    assert (first, length, found) == (len(before), len(step), times)


@pytest.mark.parametrize("symbols", [[], [1], [1] * 50, [1, 2, 1, 2]])
def test_nothing_repeats(symbols: list[int]) -> None:
    assert _analysis.period_of(np.array(symbols, dtype=np.int32))[1] == 0


def test_wrong_numbers_are_refused() -> None:
    one = columns([(0, 1, 0, 0)])
    with pytest.raises(ValueError, match="classes"):
        _analysis.set_time_ns(*one, *one[:3], 9)
    with pytest.raises(ValueError, match="class 1"):
        _analysis.set_time_ns(*one[:3], one[3] + 1, *one[:3], 1)
    with pytest.raises(ValueError, match="lane 3"):
        _analysis.lane_time_ns(*one[:3], one[3] + 3, 1, 3)
    with pytest.raises(ValueError, match="differ in length"):
        _analysis.gaps_between(one[0], one[1], one[2][:0])
