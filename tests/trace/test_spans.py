# SPDX-License-Identifier: Apache-2.0
"""Stretches of time against an oracle that looks at every moment."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.trace.spans import Spans

Interval = tuple[int, int, int]  # process, start, end
INTERVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 8)).map(
        lambda x: (x[0], x[1], x[1] + x[2])
    ),
    max_size=12,
)


def columns(intervals: list[Interval]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(intervals, dtype=np.int64).reshape(-1, 3)
    return table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 2].copy()


def moments(intervals: list[Interval]) -> set[tuple[int, int]]:
    return {(process, t) for process, start, end in intervals for t in range(start, end)}


def listed(process: np.ndarray, start: np.ndarray, end: np.ndarray) -> list[Interval]:
    return list(zip(process.tolist(), start.tolist(), end.tolist(), strict=True))


@settings(max_examples=150)
@given(INTERVALS, INTERVALS)
def test_against_every_moment(of: list[Interval], asked: list[Interval]) -> None:
    spans = Spans.of(*columns(of))
    inside = moments(of)
    spread = listed(spans.process, spans.start_ns, spans.end_ns)
    assert moments(spread) == inside and spans.total_ns == len(inside)
    assert spread == sorted(spread)

    process, start, end = columns(asked)
    row, begins, ends = spans.cut(process, start, end)
    whole = listed(process, start, end)
    out_row, out_begins, out_ends = spans.cut_out(process, start, end)
    for i, interval in enumerate(whole):
        mine = listed(process[row[row == i]], begins[row == i], ends[row == i])
        assert moments(mine) == moments([interval]) & inside
        assert len(moments(mine)) == sum(b - a for _, a, b in mine), "no moment twice"
        others = listed(process[out_row[out_row == i]], out_begins[out_row == i], out_ends[out_row == i])
        assert moments(others) == moments([interval]) - inside
        assert all(b > a for _, a, b in others)
    touches, holds = spans.touch(process, start, end), spans.hold(process, start, end)
    for i, (p, a, b) in enumerate(whole):
        if b > a:
            assert touches[i] == bool(moments([whole[i]]) & inside)
            assert holds[i] == (moments([whole[i]]) <= inside)
        else:  # an operation that took no time is where its moment is
            assert touches[i] == holds[i] == ((p, a) in inside)


@settings(max_examples=100)
@given(INTERVALS, INTERVALS)
def test_intersection(one: list[Interval], other: list[Interval]) -> None:
    both = Spans.of(*columns(one)).intersect(Spans.of(*columns(other)))
    assert moments(listed(both.process, both.start_ns, both.end_ns)) == moments(one) & moments(other)


def test_neighbours_stay_two() -> None:
    """Two steps in a row are a window of two parts."""
    assert len(Spans.of(*columns([(0, 0, 5), (0, 5, 9)]))) == 2
    assert len(Spans.of(*columns([(0, 0, 5), (0, 4, 9)]))) == 1
