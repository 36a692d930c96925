# SPDX-License-Identifier: Apache-2.0
"""What the page's timeline is made of: packed columns, levels of detail, and the choice of what is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.report.html.keep import keep
from profiling_lab.report.html.lane import Lane
from profiling_lab.report.html.names import NAME_AT_MOST, Names
from profiling_lab.report.html.packing import Packer, read_column, unpack
from profiling_lab.report.html.timeline_levels import COARSEST, FACTOR, FULL, buckets_for, levels

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(INT64), st.lists(st.integers(0, (1 << 63) - 1)))
def test_columns_come_back_as_they_were(signed: list[int], unsigned: list[int]) -> None:
    packer = Packer()
    first = packer.column(np.array(signed, dtype=np.int64), signed=True)
    second = packer.column(np.array(unsigned, dtype=np.int64))
    head, body = unpack(packer.pack({"names": ["<&>", "ä"]}))
    assert head == {"names": ["<&>", "ä"]}
    assert read_column(body, first, signed=True).tolist() == signed
    assert read_column(body, second).tolist() == unsigned


def test_small_numbers_take_one_byte_and_a_cut_body_is_noticed() -> None:
    packer = Packer()
    packer.column([0, 127, 5])
    assert packer.column([128]) == [3, 1], "three bytes came before"
    _, body = unpack(packer.pack({}))
    assert len(body) == 5
    with pytest.raises(IndexError, match="expected 4 numbers"):
        read_column(body[:2], [0, 4])


events = st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 9_000)), min_size=1, max_size=60)


@settings(max_examples=60)
@given(events)
def test_levels_against_a_count_by_hand(pairs: list[tuple[int, int]]) -> None:
    pairs = sorted((start, min(start + length, 60_000)) for start, length in pairs)
    start, end = np.array(pairs, dtype=np.int64).T.copy()
    made = levels(start, end, 60_000, COARSEST * FACTOR)
    assert [level.width_ns for level in made] == [60, 15]
    for level in made:
        width = level.width_ns
        assert (np.diff(level.bucket) > 0).all(), "in order, each once"
        assert level.count.sum() == len(pairs)
        for bucket, busy_ns, count, shown in zip(
            level.bucket.tolist(), level.busy_ns.tolist(), level.count.tolist(), level.shown.tolist(),
            strict=True,
        ):  # fmt: skip
            low, high = bucket * width, (bucket + 1) * width
            parts = [max(0, min(b, high) - max(a, low)) for a, b in pairs]
            # Finer buckets are full at their width: where events overlap, sums of them may be smaller.
            assert busy_ns <= min(sum(parts), width)
            assert busy_ns == min(sum(parts), width) or level is made[0]
            assert count == sum(a // width == bucket for a, _ in pairs)
            assert parts[shown] > 0 or max(parts) == 0
        assert level.busy.min() >= 1 and level.busy.max() <= FULL, "what happened is seen"


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 900)), min_size=1, max_size=80))
def test_no_level_loses_busy_time(steps: list[tuple[int, int]]) -> None:
    moment, pairs = 0, []
    for gap, length in steps:
        pairs.append((moment + gap, moment + gap + length))
        moment += gap + length
    start, end = np.array(pairs, dtype=np.int64).T.copy()
    for level in levels(start, end, moment, COARSEST * FACTOR):
        assert level.busy_ns.sum() == (end - start).sum(), (
            "events that follow each other: exact at each level"
        )


def test_long_events_that_overlap_do_not_explode() -> None:
    start = np.zeros(5000, dtype=np.int64)
    made = levels(start, start + 10**9, 10**9, 1 << 18)
    assert max(len(level.bucket) for level in made) <= COARSEST
    assert levels(start[:0], start[:0], 10, 1024) == [] and levels(start, start, 0, 1024) == []


@pytest.mark.parametrize(("count", "buckets"), [(0, 0), (1024, 0), (5000, 1024), (1_000_000, 262_144)])
def test_a_lane_gets_the_levels_it_deserves(count: int, buckets: int) -> None:
    assert buckets_for(count) == buckets


def lane(kind: str, start: list[int], length: int, rows: list[int], **more: list[int]) -> Lane:
    begin = np.array(start, dtype=np.int64)
    zeros = np.zeros(len(begin), dtype=np.int32)
    columns = {name: np.array(values) for name, values in more.items()}
    return Lane(0, kind, kind, begin, begin + length, zeros, zeros.astype(np.uint8), zeros,
                np.array(rows, dtype=np.int64), columns)  # fmt: skip


def test_everything_is_kept_where_there_is_room() -> None:
    kept = keep([lane("stream", [0, 10], 5, [0, 1], call=[-1, -1])], 100, [], 2)
    assert kept.windows is None and kept.events == 2


def test_windows_are_whole_and_come_with_their_launches() -> None:
    """1000 launches, each of a kernel that runs 300 ns behind; room for a tenth of them."""
    at = list(range(0, 10_000, 10))
    calls = lane("calls", at, 3, list(range(1000)))
    stream = lane("stream", [t + 300 for t in at], 8, list(range(1000)), call=list(range(1000)))
    kept = keep([calls, stream], 10_400, [(5000, 5400)], 200)
    assert kept.windows is not None and any(a <= 5000 and b >= 5400 for a, b in kept.windows)
    of_calls, of_stream = kept.masks
    for start, end in kept.windows:
        for one, mask in ((calls, of_calls), (stream, of_stream)):
            inside = (one.start_ns < end) & (one.end_ns > start)
            assert mask[inside].all(), "no event of a kept window is missing"
    assert of_calls[np.flatnonzero(of_stream)].all(), "each kernel has its launch"
    assert kept.events < 400


def test_a_window_larger_than_the_room_is_kept_in_part() -> None:
    stream = lane("stream", list(range(0, 100_000, 10)), 8, list(range(10_000)), call=[-1] * 10_000)
    kept = keep([stream], 100_000, [(0, 100_000)], 1000)
    assert 800 <= kept.events <= 1000


def test_names_are_shared_and_cut() -> None:
    names = Names()
    assert names.add("gemm") == names.add("gemm", "gemm") != names.add("gemm", "gemm<float>")
    long = names.add("x" * 10_000)
    assert len(names.shown[long]) == NAME_AT_MOST and names.shown[long].endswith("…")
    table = names.add_all(["a", "b"])
    assert names.shown[table[-1]] == "", "row -1 has the empty name"
