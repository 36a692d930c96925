# SPDX-License-Identifier: Apache-2.0
"""Ranges by name and by path, on the host and projected onto the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.ranges.ranges import RangesResult, ranges
from profiling_lab.analysis.ranges.tree import paths
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

RECORDED = Path(__file__).resolve().parents[3] / "profiling_lab/exercises/e17_python_backtrace/recorded"


def ranges_of(builder: TraceBuilder, folder: Path, tree: bool = False) -> RangesResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return ranges(trace, tree)


def step(builder: TraceBuilder) -> None:
    """A range of 20 us with two kernels, one of them in a range inside."""
    begin = builder.now_ns
    builder.launch("a", 1000, stack="train.py:3 main")
    inner = builder.now_ns
    builder.launch("b", 4000, stack="model.py:5 forward")
    builder.range("forward", inner, builder.now_ns - 1).gap(10_000)
    builder.range("step", begin, begin + 20_000 - 1)


def test_host_and_gpu_time(tmp_path: Path) -> None:
    builder = TraceBuilder()
    step(builder)
    step(builder)
    rows = {row.name: row for row in ranges_of(builder, tmp_path).rows}
    outer, inner = rows["step"], rows["forward"]
    assert (outer.host.count, outer.host.total, outer.operations) == (2, 2 * 19_999, 4)
    # Each operation starts when its call returns: 5 us from one to the other, the second takes 4.
    assert (outer.projected.count, outer.projected.total, outer.busy_ns) == (2, 2 * 9000, 2 * 5000)
    assert (inner.projected.total, inner.busy_ns, inner.operations) == (8000, 8000, 2)
    assert [(p.key, p.count) for p in outer.places] == [("model.py:5", 2), ("train.py:3", 2)]
    assert [p.key for p in inner.places] == ["model.py:5"]
    assert outer.style == "push/pop" and outer.host_self_ns is None


def test_a_tree(tmp_path: Path) -> None:
    builder = TraceBuilder()
    step(builder)
    step(builder)
    begin = builder.now_ns
    builder.launch("b", 10).range("forward", begin, builder.now_ns - 1)
    result = ranges_of(builder, tmp_path, tree=True)
    assert [(row.key, row.host.count) for row in result.rows] == [
        ("step (push/pop)", 2),
        ("step > forward (push/pop)", 2),
        ("forward (push/pop)", 1),
    ]
    outer, inner, alone = result.rows
    assert outer.host_self_ns == outer.host.total - inner.host.total
    assert inner.host_self_ns == inner.host.total and alone.parents == ()


def test_what_emit_nvtx_appends_is_no_name(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for i in range(3):
        builder.launch("a", 10).range(f"aten::mm, seq = {i}, op_id = {i + 9}", builder.now_ns, builder.now_ns)
    (row,) = ranges_of(builder, tmp_path).rows
    assert (row.name, row.host.count, row.operations) == ("aten::mm", 3, 0)
    assert row.places == (), "it launched nothing"


def test_numbers_can_be_merged(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 10)
    for i in range(3):
        builder.range(f"layer 1{i} of 4", builder.now_ns + 10 * i, builder.now_ns + 10 * i + 5)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert len(ranges(trace).rows) == 3
        (row,) = ranges(trace, merge_numbers=True).rows
        assert (row.name, row.host.count) == ("layer * of *", 3)


def test_domains_are_kept_separate(tmp_path: Path) -> None:
    builder = TraceBuilder()
    begin = builder.now_ns
    builder.launch("a", 10)
    builder.range("reduce", begin, builder.now_ns).range("reduce", begin, builder.now_ns, domainId=3)
    builder.row("NVTX_EVENTS", start=0, eventType=75, text="NCCL", domainId=3, globalTid=builder.tid(1))
    result = ranges_of(builder, tmp_path)
    assert result.domains == ("NCCL",)
    assert {(row.domain, row.title, row.operations) for row in result.rows} == {
        ("", "reduce", 1),
        ("NCCL", "NCCL:reduce", 1),
    }


def test_a_range_inside_of_its_own_name_counts_once(tmp_path: Path) -> None:
    """An operator that calls its own overload: its time, its operations and its lines were counted twice."""
    builder = TraceBuilder()
    begin = builder.now_ns
    builder.launch("a", 1000, stack="train.py:3 main")
    middle = builder.now_ns
    builder.launch("b", 4000, stack="model.py:5 forward")
    inner_end = builder.now_ns - 1
    builder.range("aten::to", middle + 1, inner_end - 1).range("aten::copy_", middle, inner_end)
    builder.gap(1000).range("aten::to", begin, builder.now_ns)
    length_ns = builder.now_ns - begin
    builder.gap(1000)
    again = builder.now_ns
    builder.launch("c", 100).range("aten::to", again, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        result, in_tree = ranges(trace), ranges(trace, tree=True)
    rows = {row.name: row for row in result.rows}
    outer, between = rows["aten::to"], rows["aten::copy_"]
    assert (outer.host.count, outer.host.total) == (2, length_ns + builder.now_ns - again)
    assert (outer.operations, outer.busy_ns, between.operations) == (3, 5100, 1)
    assert (outer.nested, outer.unfinished, between.nested, result.nested) == (1, 0, 0, 1)
    assert [(p.key, p.count) for p in outer.places if p.frame] == [("model.py:5", 1), ("train.py:3", 1)]
    assert [row.host.count for row in in_tree.rows] == [2, 1, 1] and in_tree.nested == 0


def test_started_ranges_may_overlap_and_change_threads(tmp_path: Path) -> None:
    """Of overlapping ranges each has what was launched in it; one that ended elsewhere has no inside."""
    builder = TraceBuilder()
    begin = builder.now_ns
    for name in ("a", "b", "c"):
        builder.launch(name, 100)
    started = {"eventType": 60}
    builder.range("first", begin, begin + 9000, **started)
    builder.range("second", begin + 4000, begin + 15_000, **started)
    builder.range("elsewhere", begin, begin + 15_000, endGlobalTid=builder.tid(4), **started)
    builder.range("same", begin, begin + 15_000, endGlobalTid=builder.tid(1), **started)
    result = ranges_of(builder, tmp_path)
    rows = {row.name: row for row in result.rows}
    assert {name: row.operations for name, row in rows.items()} == {
        "first": 2,
        "second": 2,
        "elsewhere": 0,
        "same": 3,
    }
    assert {row.style for row in result.rows} == {"start/end"} and result.across_threads == 1
    assert rows["elsewhere"].host.total == 15_000


def test_a_launch_must_lie_inside_as_a_whole(tmp_path: Path) -> None:
    """And on the thread of the range."""
    builder = TraceBuilder()
    begin = builder.now_ns
    builder.launch("cut off", 100).range("short", begin, begin + 1000)
    builder.range("other thread", begin, begin + 9000, thread=2)
    assert [row.operations for row in ranges_of(builder, tmp_path).rows] == [0, 0]


def test_ranges_that_never_ended(tmp_path: Path) -> None:
    builder = TraceBuilder()
    begin = builder.now_ns
    builder.launch("a", 10).range("epoch", begin, None).range("epoch", begin, begin + 9000)
    result = ranges_of(builder, tmp_path)
    (row,) = result.rows
    assert (row.host.count, row.unfinished, row.host.total) == (1, 1, 9000)
    assert (row.projected.count, row.operations, result.unfinished) == (1, 1, 1)
    assert ranges_of_tree_is_whole(tmp_path)


def ranges_of_tree_is_whole(folder: Path) -> bool:
    with Trace.open(folder / "run.sqlite") as trace:
        result = ranges(trace, tree=True)
        return sum(row.host.count + row.unfinished for row in result.rows) == result.ranges


def test_a_window_has_its_own_ranges(tmp_path: Path) -> None:
    builder = TraceBuilder()
    step(builder)
    builder.gap(100_000)
    step(builder)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        part = ranges(trace.windowed(WindowSelection(range="60us:")))
        assert {(row.name, row.host.count) for row in part.rows} == {("step", 1), ("forward", 1)}
        assert part.ranges == 2


def test_nothing_to_show(tmp_path: Path) -> None:
    with Trace.open(TraceBuilder().launch("a", 1).write(tmp_path / "run.sqlite")) as trace:
        with pytest.raises(NotEnoughDataError, match="holds no range"):
            ranges(trace)
        with pytest.raises(UsageError, match="at least 1"):
            ranges(trace, limit=0)


def test_ranges_where_nothing_ran_on_the_gpu(tmp_path: Path) -> None:
    result = ranges_of(TraceBuilder().range("load", 5, 9), tmp_path)
    assert [(row.name, row.host.total, row.projected.count) for row in result.rows] == [("load", 4, 0)]
    assert "holds no GPU operation" in result.coverage.notes[0]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(-1, 8), st.integers(0, 2)), max_size=9))
def test_paths_against_an_oracle(rows: list[tuple[int, int]]) -> None:
    """Each range lies in one that comes before it, or in none."""
    parent = [p if p < i else -1 for i, (p, _) in enumerate(rows)]

    def expected(row: int) -> tuple[int, ...]:
        above = expected(parent[row]) if parent[row] >= 0 else ()
        return (*above, rows[row][1])

    found = paths(np.array([label for _, label in rows], dtype=np.int32), np.array(parent, dtype=np.int32))
    for row in range(len(rows)):
        assert tuple(found.label[p] for p in found.of(int(found.number[row]))) == expected(row)
    assert len(found) == len({expected(row) for row in range(len(rows))})
    weight = np.ones(len(found), dtype=np.int64)
    order = found.depth_first(set(range(len(found))), weight)
    assert sorted(order) == list(range(len(found)))
    for i, path in enumerate(order):
        assert found.parent[path] < 0 or found.parent[path] in order[:i]


def test_autograd_ranges_of_nsys(captures: Path) -> None:
    with Trace.open(captures / "autograd_nvtx_h200.sqlite") as trace:
        flat = {row.name: row for row in ranges(trace).rows}
        tree = {row.key: row for row in ranges(trace, tree=True).rows}
    assert flat["aten::mm"].host.count == 40 and flat["aten::mm"].operations == 80
    assert tree["forward > aten::matmul > aten::mm (push/pop)"].operations == 40
    assert flat["forward"].host.total == tree["forward (push/pop)"].host.total


def test_fsdp_inference_by_operator(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        result = ranges(trace)
    rows = {row.name: row for row in result.rows}
    assert result.ranges == 16_782 and len(rows) == 176, "op_id makes nearly every text different"
    assert rows["aten::copy_"].host.count == 1184 and rows["aten::copy_"].projected.count == 568


def test_the_demo() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        rows = {row.name: row for row in ranges(trace).rows}
    heavy = rows["HeavyLayer"]
    assert (heavy.host.count, heavy.operations, heavy.busy_ns) == (4, 8, 38_860_858)
    assert heavy.places[0].frame and heavy.places[0].frame.function == "HeavyLayer.forward"
