# SPDX-License-Identifier: Apache-2.0
"""Steps in eight parts: against an oracle that looks at every nanosecond, and on the traces of resnet50."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from builders import VM, TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.host.steps import CATEGORIES
from profiling_lab.analysis.steps import StepsResult, steps
from profiling_lab.trace import Trace

KINDS = {
    "gemm": "compute",
    "ncclDevKernel_AllReduce": "communication",
    "copy": "memcpy",
    "set": "memset",
    "cudaLaunchKernel": "runtime",
    "cudaStreamSynchronize": "runtime",
    "cudaEventQuery": "other",
    "enumerate(DataLoader)#_Iter.__next__": "data loading",
    "aten::mm": "in ranges",
    "epoch": "other",  # it holds the steps
}
THING = st.tuples(
    st.sampled_from([k for k in KINDS if k != "epoch"]), st.integers(0, 300), st.integers(1, 80)
)
STEPS = ((1050, 1150), (1150, 1200), (1250, 1390))


def build(things: list[tuple[str, int, int]]) -> TraceBuilder:
    builder = TraceBuilder()
    for name, start, length in [("gemm", 0, 1), *things]:
        start += 1000
        if KINDS[name] in ("compute", "communication"):
            builder.launch(name, length, start_ns=start, recorded=False)
        elif name == "copy":
            builder.copy("HtoD", length, start_ns=start, recorded=False)
        elif name == "set":
            builder.memset(length, start_ns=start, recorded=False)
        elif name.startswith("cuda"):
            builder.row(
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                start=start,
                end=start + length,
                eventClass=0,
                globalTid=builder.tid(1 + start % 2),
                correlationId=10**6 + start,
                nameId=builder.string(name),
                returnValue=0,
            )
        else:
            builder.range(name, start, start + length, thread=1 + start % 2)
    for i, (start, end) in enumerate(STEPS):
        builder.range(f"ProfilerStep#{i}", start, end)
    return builder.range("epoch", 1000, 1400)


@settings(max_examples=60)
@given(st.lists(THING, max_size=15))
def test_every_nanosecond_is_in_one_part(things: list[tuple[str, int, int]]) -> None:
    busy: dict[int, set[str]] = {}
    for name, start, length in [("gemm", 0, 1), *things]:
        begin, end = 1000 + start, 1000 + start + length
        if name == "aten::mm" and any(begin <= first and last <= end for first, last in STEPS):
            continue  # what holds a whole step tells nothing about it
        for moment in range(begin, end):
            busy.setdefault(moment, set()).add(KINDS[name])
    with tempfile.TemporaryDirectory() as folder:
        path = build(things).write(Path(folder) / "t.sqlite")
        with Trace.open(path) as trace:
            rows = steps(trace, host=True).rows
    for row, (start, end) in zip(rows, STEPS, strict=True):
        counted = Counter(
            next(part for part in CATEGORIES if part in busy.get(moment, set()) | {"other"})
            for moment in range(start, end)
        )
        assert row.categories_ns == tuple(counted[part] for part in CATEGORIES)
        assert sum(row.categories_ns) == row.wall_ns == end - start
        assert sum(row.categories_ns[4:]) == row.idle_ns and sum(row.categories_ns[2:4]) == row.copy_ns


def test_the_host_of_another_process_is_not_asked(tmp_path: Path) -> None:
    builder = build([]).launch("gemm", 1, pid=200, start_ns=1399, recorded=False)
    builder.row(
        "NVTX_EVENTS",
        start=1060,
        end=1100,
        eventType=59,
        text="aten::mm",
        globalTid=VM | 200 << 24 | 200,
        domainId=0,
    )
    with Trace.open(builder.write(tmp_path / "t.sqlite")) as trace:
        mine = [row for row in steps(trace, host=True).rows if row.pid == 100]
    assert [row.categories_ns[CATEGORIES.index("in ranges")] for row in mine] == [0, 0, 0]


def test_without_asking_there_are_none(tmp_path: Path) -> None:
    with Trace.open(build([]).write(tmp_path / "t.sqlite")) as trace:
        assert {row.categories_ns for row in steps(trace).rows} == {()}


def resnet50(captures: Path, workers: int) -> StepsResult:
    with Trace.open(captures / f"resnet50_num_workers_{workers}.pt.trace.json.gz") as trace:
        return steps(trace, host=True)


@pytest.mark.parametrize(
    ("workers", "loading_ms", "outliers"), [(0, 356, []), (4, 7, ["runtime", "in ranges"])]
)
def test_resnet50(captures: Path, workers: int, loading_ms: int, outliers: list[str]) -> None:
    """Data loading that nothing hid, of six steps; why two of the steps with workers are slow."""
    result = resnet50(captures, workers)
    loading = sum(row.categories_ns[CATEGORIES.index("data loading")] for row in result.rows)
    assert round(loading / 1e6) == loading_ms
    assert [row.grew for row in result.rows if row.outlier] == outliers
    assert {sum(row.categories_ns) - row.wall_ns for row in result.rows} == {0}
