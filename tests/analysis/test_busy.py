# SPDX-License-Identifier: Apache-2.0
"""Busy and idle time against an oracle that looks at every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiling_lab.analysis.busy import Busy

END = 60
intervals = st.lists(
    st.tuples(st.integers(0, END - 1), st.integers(1, 15)).map(lambda p: (p[0], min(sum(p), END))),
    min_size=1,
    max_size=12,
)


def busy_of(found: list[tuple[int, int]]) -> tuple[Busy, np.ndarray]:
    works = np.zeros(END, dtype=bool)
    for start, end in found:
        works[start:end] = True
    starts, ends = np.array(found, dtype=np.int64).T
    return Busy.of(starts, ends), works


@given(intervals, st.lists(st.tuples(st.integers(-5, END + 5), st.integers(0, 30)), min_size=1, max_size=5))
def test_idle_inside_of_intervals(found: list[tuple[int, int]], intervals: list[tuple[int, int]]) -> None:
    busy, works = busy_of(found)
    first, last = min(s for s, _ in found), max(e for _, e in found)
    assert busy.total_ns == works.sum() and busy.span_ns == last - first
    assert busy.idle_ns == (~works[first:last]).sum()
    starts = np.array([s for s, _ in intervals], dtype=np.int64)
    ends = starts + np.array([length for _, length in intervals], dtype=np.int64)
    wanted = [
        sum(not works[t] for t in range(max(s, first), min(e, last)))
        for s, e in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    assert busy.idle_within(starts, ends).tolist() == wanted


@given(intervals, st.lists(st.tuples(st.integers(0, END), st.integers(0, 30)), min_size=1, max_size=6))
def test_gaps_are_charged_once_and_never_more_than_they_last(
    found: list[tuple[int, int]], waits: list[tuple[int, int]]
) -> None:
    # Microseconds here: nothing of the tolerance for clocks that differ shows.
    scale = 10_000
    busy, works = busy_of(found)
    busy = Busy(busy.start_ns * scale, busy.end_ns * scale)
    starts = np.array([s for s, _ in waits], dtype=np.int64) * scale
    ends = starts + np.array([length for _, length in waits], dtype=np.int64) * scale
    charged = busy.gap_around(starts, ends)
    assert (charged >= 0).all() and charged.sum() <= busy.idle_ns
    taken: set[int] = set()
    for row in np.argsort(ends, kind="stable").tolist():
        start, end = int(starts[row]) // scale, int(ends[row]) // scale
        later = [t for t in range(end, END) if works[t]]
        inside = any(works[:end]) and later and not (end < END and works[end]) and later[0] not in taken
        if not inside:
            assert charged[row] == 0
            continue
        taken.add(later[0])
        began = max(t for t in range(end) if works[t]) + 1
        assert charged[row] == (later[0] - max(began, start)) * scale


@given(intervals, intervals, st.lists(st.integers(0, END - 1), min_size=1, max_size=9))
def test_one_without_another(
    mine: list[tuple[int, int]], others: list[tuple[int, int]], moments: list[int]
) -> None:
    (busy, works), (other, there) = busy_of(mine), busy_of(others)
    left, here = works & ~there, np.array(sorted(moments), dtype=np.int64)
    found = busy.without(other)
    assert found.total_ns == left.sum() and found.holds(here).tolist() == left[here].tolist()
    assert found.busy_within(here[:-1], here[1:]).tolist() == [
        left[a:b].sum() for a, b in zip(here[:-1].tolist(), here[1:].tolist(), strict=True)
    ]
