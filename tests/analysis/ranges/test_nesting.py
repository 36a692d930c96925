# SPDX-License-Identifier: Apache-2.0
"""How deep ranges nest, against a count of the ranges around each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiling_lab.analysis.ranges.nesting import depths


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(start, end, track) of ranges that nest, their ends at least 2 microseconds apart."""
    out: list[tuple[int, int, int]] = []
    moment = 0

    def grow(track: int, depth: int) -> None:
        nonlocal moment
        moment += 2000
        start, place = moment, len(out)
        out.append((0, 0, 0))
        for _ in range(draw(st.integers(0, 2)) if depth < 5 else 0):
            grow(track, depth + 1)
        moment += 2000
        out[place] = (start, moment, track)

    for track in range(draw(st.integers(1, 3))):
        grow(track, 0)
    return draw(st.permutations(out))


@given(trees())
def test_depth_is_the_number_of_ranges_around(ranges: list[tuple[int, int, int]]) -> None:
    start, end, track = np.array(ranges, dtype=np.int64).T.copy()
    wanted = [
        sum(t == track_ and s < start_ and end_ < e for s, e, t in ranges) for start_, end_, track_ in ranges
    ]
    assert depths(start, end, track.astype(np.int32)).tolist() == wanted


def test_nothing_nests_in_nothing() -> None:
    empty = np.empty(0, dtype=np.int64)
    assert depths(empty, empty, empty.astype(np.int32)).tolist() == []
