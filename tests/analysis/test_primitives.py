# SPDX-License-Identifier: Apache-2.0
"""The sweeps of csrc/analysis against oracles that look at every nanosecond or every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling_lab import _analysis

HORIZON = 40


def i32(values: object) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def i64(values: object) -> np.ndarray:
    return np.array(values, dtype=np.int64)


spans = st.lists(st.tuples(st.integers(0, HORIZON), st.integers(-3, HORIZON), st.integers(0, 2)), max_size=12)


@given(spans)
def test_union_covers_exactly_what_the_rows_cover(rows: list[tuple[int, int, int]]) -> None:
    covered = {t for start, length, _ in rows for t in range(start, start + length)}
    start_ns, end_ns = _analysis.merged(i64([r[0] for r in rows]), i64([r[0] + r[1] for r in rows]))
    found = [t for start, end in zip(start_ns, end_ns, strict=True) for t in range(start, end)]
    assert found == sorted(covered)
    assert all(end < start for end, start in zip(end_ns, start_ns[1:], strict=False)), "touching ones are one"


lengthened = st.lists(
    st.tuples(st.integers(0, HORIZON), st.integers(0, HORIZON), st.integers(0, 1)), max_size=14
)


@given(lengthened)
def test_lanes_hold_what_nests(rows: list[tuple[int, int, int]]) -> None:
    lane = _analysis.nesting_lanes(
        i64([r[0] for r in rows]), i64([r[0] + r[1] for r in rows]), i32([r[2] for r in rows])
    )

    def nest(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
        (s, n, _), (t, m, _) = a, b
        apart = s + n <= t or t + m <= s
        return apart or (s <= t and t + m <= s + n) or (t <= s and s + n <= t + m)

    for track in (0, 1):
        mine = [(row, number) for row, number in zip(rows, lane.tolist(), strict=True) if row[2] == track]
        assert {number for _, number in mine} == set(range(len({number for _, number in mine})))
        pairs = [(a, b) for i, a in enumerate(mine) for b in mine[i + 1 :]]
        assert all(nest(a, b) for (a, lane_a), (b, lane_b) in pairs if lane_a == lane_b)
        if all(nest(a, b) for (a, _), (b, _) in pairs):
            assert all(number == 0 for _, number in mine), "what nests by itself needs one lane"


@given(spans)
def test_busy_time_per_track_counts_overlaps_once(rows: list[tuple[int, int, int]]) -> None:
    busy = _analysis.busy_ns(
        i64([r[0] for r in rows]), i64([r[0] + r[1] for r in rows]), i32([r[2] for r in rows]), 3
    )
    for track in range(3):
        assert busy[track] == len({t for s, n, k in rows if k == track for t in range(s, s + n)})


@st.composite
def nested_ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Ranges as calls make them: each inside of its caller, or after its elder sister."""

    def inside(start: int, end: int, depth: int) -> list[tuple[int, int]]:
        out = []
        at = start
        while depth < 4 and at + 2 < end and draw(st.booleans()):
            begin = draw(st.integers(at, end - 2))
            finish = draw(st.integers(begin + 1, end))
            out += [(begin, finish), *inside(begin, finish, depth + 1)]
            at = finish
        return out

    return inside(0, HORIZON, 0)


@given(
    nested_ranges(),
    nested_ranges(),
    st.lists(st.tuples(st.integers(0, HORIZON), st.integers(0, 1)), max_size=20),
    st.randoms(),
)
def test_containment_finds_the_shortest_range_around_each_moment(
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
    moments: list[tuple[int, int]],
    random: object,
) -> None:
    ranges = [(s, e, 0) for s, e in first] + [(s, e, 1) for s, e in second]
    random.shuffle(ranges)  # type: ignore[attr-defined]
    parent, innermost, dropped = _analysis.contain(
        i64([r[0] for r in ranges]),
        i64([r[1] for r in ranges]),
        i32([r[2] for r in ranges]),
        i64([m[0] for m in moments]),
        i32([m[1] for m in moments]),
        0,
    )
    assert dropped == 0
    for (time, track), found in zip(moments, innermost, strict=True):
        around = [(e - s, s, e) for s, e, t in ranges if t == track and s <= time <= e]
        strictly = [x for x in around if x[1] <= time < x[2]]
        if found < 0:
            assert not around
        else:
            # At the very end of a range the next one, which starts there, or the one around may answer.
            start, end, on = ranges[found]
            assert on == track and start <= time <= end
            if strictly:
                assert end - start <= min(strictly)[0]
    for (start, end, track), up in zip(ranges, parent, strict=True):
        around = [
            (e - s) for s, e, t in ranges if t == track and s <= start and end <= e and (s, e) != (start, end)
        ]
        if around and up >= 0:
            assert ranges[up][1] - ranges[up][0] in (min(around), end - start), "or an equal twin"
        assert up >= 0 or not around


def test_timestamps_that_bleed_nest_and_longer_overlaps_are_dropped() -> None:
    parent, innermost, dropped = _analysis.contain(
        i64([0, 100, 5_000]), i64([1000, 1500, 9_000]), i32([0, 0, 0]), i64([1200, 6000]), i32([0, 0]), 1000
    )
    assert parent.tolist() == [-1, 0, -1], "500 ns past its parent is still its child"
    assert dropped == 0 and innermost.tolist() == [-1, 2], "the child ends with its parent"

    parent, innermost, dropped = _analysis.contain(
        i64([0, 4_000]), i64([10_000, 20_000]), i32([0, 0]), i64([15_000]), i32([0]), 1000
    )
    assert dropped == 1 and parent.tolist() == [-1, -1] and innermost.tolist() == [-1]


def test_a_sibling_that_starts_before_the_first_has_ended_follows_it() -> None:
    parent, innermost, dropped = _analysis.contain(
        i64([0, 9_500]), i64([10_000, 20_000]), i32([0, 0]), i64([15_000]), i32([0]), 1000
    )
    assert dropped == 0 and parent.tolist() == [-1, -1] and innermost.tolist() == [1]


ids = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(0, 9)), max_size=15)


@given(ids, ids)
def test_calls_are_found_by_process_and_id_together(
    operations: list[tuple[int, int, int]], calls: list[tuple[int, int, int]]
) -> None:
    found = _analysis.call_of(
        i32([o[0] for o in operations]),
        i64([o[1] for o in operations]),
        i32([c[0] for c in calls]),
        i64([c[1] for c in calls]),
        i64([c[2] for c in calls]),
    )
    for (process, correlation, _), call in zip(operations, found, strict=True):
        same = [(c[2], i) for i, c in enumerate(calls) if c[:2] == (process, correlation)]
        assert call == (min(same)[1] if same else -1)


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 2**60)), max_size=8))
def test_sums_are_exact(rows: list[tuple[int, int]]) -> None:
    total, count = _analysis.sum_by_key(i32([r[0] for r in rows]), i64([r[1] for r in rows]), 5)
    for key in range(5):
        values = [v for k, v in rows if k == key]
        assert (total[key], count[key]) == (sum(values), len(values))


@given(st.lists(st.tuples(st.integers(-2, 9), st.booleans()), max_size=8))
def test_nearest_marked_walks_up_and_survives_circles(nodes: list[tuple[int, bool]]) -> None:
    found = _analysis.nearest_marked(
        i32([n[0] for n in nodes]), np.array([n[1] for n in nodes], dtype=np.uint8)
    )
    for start, answer in enumerate(found):
        node, seen = start, set()
        while 0 <= node < len(nodes) and node not in seen and not nodes[node][1]:
            seen.add(node)
            node = nodes[node][0]
        marked = 0 <= node < len(nodes) and nodes[node][1]
        assert answer == (node if marked else -1)


@given(st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)))
def test_numbers_are_in_order_of_appearance(values: list[int]) -> None:
    number, distinct = _analysis.numbering(np.array(values, dtype=np.int64))
    assert distinct.tolist() == list(dict.fromkeys(values))
    assert distinct[number].tolist() == values


def test_numbers_of_more_values_than_the_first_table_holds() -> None:
    values = np.repeat(np.arange(100_000, dtype=np.int64) << 32, 2)
    number, distinct = _analysis.numbering(values)
    assert (number == np.arange(200_000) // 2).all() and (distinct == values[::2]).all()


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        _analysis.merged(i64([1]), i64([]))


def test_keys_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="not in"):
        _analysis.sum_by_key(i32([3]), i64([1]), 3)


@st.composite
def graphs(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Per moment its dependencies: (an earlier moment, how long after it)."""
    return [
        draw(st.lists(st.tuples(st.integers(0, m - 1), st.integers(-3, 9)), max_size=3)) if m else []
        for m in range(draw(st.integers(1, 9)))
    ]


@given(graphs(), st.integers(0, 4), st.integers(0, 30))
def test_a_moment_comes_when_the_last_that_it_depends_on_lets_it(
    graph: list[list[tuple[int, int]]], late: int, until: int
) -> None:
    size = len(graph)
    first = i64(np.cumsum([0, *map(len, graph)]))
    rows = [edge for edges in graph for edge in edges]
    source, after = i32([s for s, _ in rows]), i64([a for _, a in rows])
    time_ns, decided_by = _analysis.schedule(
        first, source, after, i64([late] * size), i64(range(10, 10 + size))
    )
    for moment, edges in enumerate(graph):
        ready = [int(time_ns[s]) + a for s, a in edges]
        assert time_ns[moment] == (max(ready) + late if edges else 10 + moment)
        row = int(decided_by[moment]) - int(first[moment])
        if not edges:
            assert decided_by[moment] == -1
            continue
        deciding = [i for i, at in enumerate(ready) if at == max(ready)]
        assert row == max(deciding, key=lambda i: (time_ns[edges[i][0]], -i))
    chain = _analysis.deciding_chain(source, time_ns, decided_by, size - 1, until)
    at = size - 1
    for row in chain.tolist():
        assert row == decided_by[at] and time_ns[at] > until
        at = int(source[row])
    assert time_ns[at] <= until or decided_by[at] == -1


@pytest.mark.parametrize(
    ("first", "source", "said"),
    [([0, 1], [0], "behind it"), ([0, 0, 2], [0], "not all rows"), ([0, 0, 1, 0, 1], [0], "not in order")],
)
def test_a_graph_with_a_circle_or_a_hole_is_refused(first: list[int], source: list[int], said: str) -> None:
    moments = i64([0] * (len(first) - 1))
    with pytest.raises(ValueError, match=said):
        _analysis.schedule(i64(first), i32(source), i64([0] * len(source)), moments, moments)
