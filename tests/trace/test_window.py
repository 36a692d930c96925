# SPDX-License-Identifier: Apache-2.0
"""Parts of a trace: which there are, and that what is counted in all of them adds up to the whole."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.coverage import coverage
from profiling_lab.analysis.device_spans import device_spans
from profiling_lab.analysis.gaps.gaps import gaps
from profiling_lab.analysis.lines import lines
from profiling_lab.analysis.overlap.overlap import overlap
from profiling_lab.analysis.steps import steps
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.window import WindowSelection

RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"
US = 1000


def ns(trace: Trace, *moments: int) -> str:
    """A range between two moments of the file's clock, as the option has it."""
    return ":".join(f"{moment - trace.first_ns}ns" for moment in moments)


def names(trace: Trace) -> list[str]:
    return [trace.operations.names[i] for i in trace.operations.name]


@pytest.fixture
def three_steps(tmp_path: Path) -> Path:
    """Each step: two kernels of 30 us, launched 5 us apart; the host is far ahead of the GPU."""
    builder = TraceBuilder()
    for i in range(3):
        begin = builder.now_ns
        builder.launch("gemm", 30 * US, stack="/app/t.py:1 main", peek=2 * i + 1)
        builder.launch("gemm_bwd", 30 * US, node=2 * i, node_name="MmBackward0", thread=2)
        builder.range("training_step", begin, builder.now_ns)
    return builder.write(tmp_path / "run.sqlite")


# Time


def test_an_operation_counts_with_the_part_inside(tmp_path: Path) -> None:
    builder = (
        TraceBuilder().launch("a", 100 * US, start_ns=2000 * US).launch("b", 100 * US, start_ns=2200 * US)
    )
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        part = trace.windowed(WindowSelection(range=ns(trace, 2050 * US, 2210 * US)))
        assert names(part) == ["a", "b"] and part.operations.duration_ns.tolist() == [50 * US, 10 * US]
        result = gaps(part)
        assert (result.idle_ns, result.span_ns) == (100 * US, 160 * US)
        # A window that begins in a pause: its idle time is the window's, its cause lies behind it.
        edge = trace.windowed(WindowSelection(range=ns(trace, 2150 * US, 2201 * US)))
        (row,) = gaps(edge).rows
        assert (row.idle_ns, gaps(edge).span_ns) == (50 * US, 51 * US)
        assert coverage(edge, edge.stacks.own_rows(Ownership())).span_ns == 51 * US


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1.05ms:", "b"), (":1050us", "a"), ("0s:1100001ns", "ab"), ("0:1.1ms", "a"), ("1.2ms:.0013s", "b")],
)
def test_times(tmp_path: Path, text: str, expected: str) -> None:
    """The first call begins at 1 ms of the file's clock: that is 0."""
    builder = (
        TraceBuilder().launch("a", 50 * US, start_ns=2000 * US).launch("b", 500 * US, start_ns=2100 * US)
    )
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert trace.first_ns == 1000 * US
        assert "".join(names(trace.windowed(WindowSelection(range=text)))) == expected


@pytest.mark.parametrize(
    "text", ["", "5", "1s", "1:2", "1s:2s:3s", "2s:1s", "1s:1s", "-1s:2s", "one:two", "1m:2m"]
)
def test_times_that_are_none(three_steps: Path, text: str) -> None:
    with Trace.open(three_steps) as trace, pytest.raises(UsageError, match="--range"):
        trace.windowed(WindowSelection(range=text))


def test_an_empty_window_says_what_there_is(three_steps: Path) -> None:
    with (
        Trace.open(three_steps) as trace,
        pytest.raises(
            NotEnoughDataError, match=r"1s to the end.* has 6 of them, from 0\.000003s to 0\.000183s"
        ),
    ):
        trace.windowed(WindowSelection(range="1s:"))


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "copy"]),
            st.integers(0, 60),  # length
            st.integers(0, 90),  # pause of the host before it
            st.integers(0, 1),  # stream and device
        ),
        min_size=2,
        max_size=12,
    ),
    st.lists(st.integers(1, 900), max_size=4),
)
def test_parts_add_up_to_the_whole(work: list[tuple[str, int, int, int]], cuts: list[int]) -> None:
    builder = TraceBuilder()
    for i, (what, length, pause, where) in enumerate(work):
        builder.gap(pause * US)
        how: dict[str, Any] = {"stream": 7 + where, "device": where, "stack": f"/app/t.py:{i % 3 + 1} main"}
        if what == "copy":
            builder.copy("HtoD", length * US, **how)
        else:
            builder.launch(what, length * US, **how)
    with (
        tempfile.TemporaryDirectory() as folder,
        Trace.open(builder.write(Path(folder) / "r.sqlite")) as trace,
    ):
        first, last = int(trace.operations.start_ns.min()), int(trace.operations.end_ns.max())
        inner = sorted({moment for cut in cuts if first < (moment := first + cut * US) < last})
        edges = [first, *inner, last + 1]
        whole, parts = Counter[str](), Counter[str]()
        count(trace, whole)
        for begin, end in pairwise(edges):
            try:
                part = trace.windowed(WindowSelection(range=ns(trace, begin, end)))
            except NotEnoughDataError:  # nothing but a pause: nothing of it is in any part
                spans = device_spans(trace)
                inside = np.minimum(spans.end_ns, end) - np.maximum(spans.start_ns, begin)
                whole["idle"] -= int(inside.clip(min=0).sum())
                whole["span"] -= int(inside.clip(min=0).sum())
                continue
            count(part, parts)
        for key in ("span", "idle", "compute", "communication", "copy", "gpu", "stream busy"):
            assert whole[key] == parts[key], key
        for key in {key for key in whole | parts if key.startswith("line")}:
            assert whole[key] == parts[key], key


def count(trace: Trace, into: Counter[str]) -> None:
    idle = gaps(trace)
    assert sum(row.idle_ns for row in idle.rows) == idle.idle_ns == idle.parts_ns[3]
    into["span"] += idle.span_ns
    into["idle"] += idle.idle_ns
    for name, value in zip(("compute", "communication", "copy"), idle.parts_ns, strict=False):
        into[name] += value
    into["gpu"] += int(trace.operations.duration_ns.sum())
    streams = overlap(trace)
    into["stream busy"] += sum(row.busy_ns for row in streams.streams)
    for device in streams.devices:
        assert sum(device.level_ns) == device.span_ns
    assert sum(device.span_ns for device in streams.devices) == idle.span_ns
    for row in lines(trace).rows:
        into[f"line {row.key}"] += row.gpu_ns


def test_an_operation_without_length_is_in_one_part(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 10 * US, start_ns=2000 * US).launch("nothing", 0, start_ns=2010 * US)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert names(trace.windowed(WindowSelection(range=ns(trace, 2000 * US, 2010 * US)))) == ["a"]
        assert names(trace.windowed(WindowSelection(range=ns(trace, 2010 * US, 2011 * US)))) == ["nothing"]
        assert names(trace.windowed(WindowSelection(ranks=(0,)))) == ["a", "nothing"]


# Steps


def test_a_step_is_its_own_work_with_the_lines_of_the_whole(three_steps: Path) -> None:
    with Trace.open(three_steps) as trace:
        part = trace.windowed(WindowSelection(step="1"))
        assert (
            part.window is not None
            and part.window.text == "step 1 of 0 to 2 (the program's training_step #2)"
        )
        assert names(part) == ["gemm", "gemm_bwd"] and part.operations.duration_ns.tolist() == [30 * US] * 2
        (row,) = lines(part).rows
        assert (row.forward_ns, row.backward_ns) == (30 * US, 30 * US)
        assert part.calls_inside.tolist() == [True, True]
        shown, all_steps = steps(part), steps(trace)
        assert (shown.rows[0].name, shown.rows[0].wall_ns) == (
            all_steps.rows[1].name,
            all_steps.rows[1].wall_ns,
        )
        assert shown.outside_ns == 0 and (shown.sign, shown.clock) == ("range", "gpu")
        assert gaps(part).steps == 1


def test_calls_outside_that_launched_what_ran_inside(three_steps: Path) -> None:
    """By time alone: the calls of this part of the GPU's time were made long before it."""
    with Trace.open(three_steps) as trace:
        start = trace.operations.start_ns
        part = trace.windowed(WindowSelection(range=ns(trace, int(start[4]), int(start[4]) + 10)))
        assert names(part) == ["gemm"] and not part.calls_inside.any() and len(part.calls) == 1
        assert part.attribution.call.tolist() == [0] and part.calls.correlation.tolist() == [5]
        assert lines(part).coverage.attributed_ns == 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", [0]), ("-1", [2]), ("1:", [1, 2]), (":2", [0, 1]), ("-2:", [1, 2]), (":", [0, 1, 2])],
)
def test_steps_are_counted_as_in_python(three_steps: Path, text: str, expected: list[int]) -> None:
    with Trace.open(three_steps) as trace:
        shown = steps(trace.windowed(WindowSelection(step=text)))
        assert [row.name for row in shown.rows] == [f"training_step #{i + 1}" for i in expected]
        assert [row.number for row in shown.rows] == expected


@pytest.mark.parametrize("text", ["3", "-4", "2:1", "7:"])
def test_steps_that_there_are_not(three_steps: Path, text: str) -> None:
    with Trace.open(three_steps) as trace, pytest.raises(UsageError, match="has 3 steps, 0 to 2"):
        trace.windowed(WindowSelection(step=text))


@pytest.mark.parametrize("text", ["", "x", "1:2:3", "1.5", "a:b"])
def test_steps_that_are_no_numbers(three_steps: Path, text: str) -> None:
    with Trace.open(three_steps) as trace, pytest.raises(UsageError, match="--step expects"):
        trace.windowed(WindowSelection(step=text))


def test_no_steps(tmp_path: Path) -> None:
    path = TraceBuilder().launch("a", 10).launch("b", 10).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace, pytest.raises(NotEnoughDataError, match="--steps-by defines steps"):
        trace.windowed(WindowSelection(step="0"))


def test_a_part_without_a_whole_step_is_one_itself(three_steps: Path) -> None:
    with Trace.open(three_steps) as trace:
        start = int(trace.operations.start_ns[0])
        two_and_a_half = trace.windowed(WindowSelection(range=ns(trace, start, start + 150 * US)))
        # The first step's own marks are on the host's clock before the window, on the GPU's inside.
        assert [row.name for row in steps(two_and_a_half).rows] == ["training_step #1", "training_step #2"]
        half = trace.windowed(WindowSelection(range=ns(trace, start, start + 40 * US)))
        (row,) = steps(half).rows
        assert (row.name, row.wall_ns, steps(half).sign) == ("window", 40 * US, "window")


# NVTX ranges


@pytest.fixture
def ranges(tmp_path: Path) -> Path:
    """Twice: forward launches on the main thread, backward on autograd's while the main thread waits."""
    builder = TraceBuilder()
    for _ in range(2):
        builder.range("data", builder.now_ns, builder.now_ns + 2 * US).gap(10 * US)
        begin = builder.now_ns
        builder.launch("gemm", 30 * US).launch("relu", 30 * US)
        builder.range("forward", begin, builder.now_ns, domainId=0)
        begin = builder.now_ns
        builder.launch("gemm_bwd", 40 * US, thread=2)
        builder.range("backward", begin, builder.now_ns)
        builder.range("layer/1", begin, builder.now_ns, domainId=3)
    builder.row("NVTX_EVENTS", start=0, eventType=75, text="model", domainId=3)
    builder.range("never closed", builder.now_ns, None).launch("tail", 5 * US)
    return builder.write(tmp_path / "run.sqlite")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("forward", ["gemm", "relu"] * 2),
        ("forward/0", ["gemm", "relu"]),
        ("backward/-1", ["gemm_bwd"]),
        (".*ward/1", ["gemm_bwd"]),  # forward, backward, forward, backward: the second
        ("(for|back)ward", ["gemm", "relu", "gemm_bwd"] * 2),
        ("layer/1", ["gemm_bwd"] * 2),
        ("layer/1/0", ["gemm_bwd"]),
        ("layer/1@model", ["gemm_bwd"] * 2),
        ("layer/1@model/1", ["gemm_bwd"]),
        ("never closed", ["tail"]),
    ],
)
def test_what_ranges_launched(ranges: Path, text: str, expected: list[str]) -> None:
    with Trace.open(ranges) as trace:
        part = trace.windowed(WindowSelection(nvtx=text))
        assert names(part) == expected
        assert set(part.operations.duration_ns.tolist()) <= {5 * US, 30 * US, 40 * US}, "all of each"


def test_a_range_that_launched_nothing_is_taken_by_the_hosts_clock(ranges: Path) -> None:
    """What did the GPU do while the data was loaded? The second time it was still at work."""
    with Trace.open(ranges) as trace:
        part = trace.windowed(WindowSelection(nvtx="data/1"))
        assert part.operations.duration_ns.sum() == 2 * US
        with pytest.raises(NotEnoughDataError, match="no GPU operation in this window"):
            trace.windowed(WindowSelection(nvtx="data/0"))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("nothing", NotEnoughDataError, "no range named 'nothing'; it has .*'forward'"),
        ("forward@other", NotEnoughDataError, "of the domain 'other'"),
        ("forward@model", NotEnoughDataError, "of the domain 'model'"),
        ("forward/2", UsageError, "2 ranges 'forward', 0 to 1"),
        ("(", UsageError, "regular expression"),
        ("", NotEnoughDataError, "no range named ''"),
    ],
)
def test_ranges_that_there_are_not(ranges: Path, text: str, error: type[Exception], message: str) -> None:
    with Trace.open(ranges) as trace, pytest.raises(error, match=message):
        trace.windowed(WindowSelection(nvtx=text))


def test_a_trace_without_ranges(tmp_path: Path) -> None:
    path = TraceBuilder().launch("a", 10).write(tmp_path / "run.sqlite")
    with Trace.open(path) as trace, pytest.raises(NotEnoughDataError, match="has no ranges"):
        trace.windowed(WindowSelection(nvtx="forward"))


def test_several_conditions_hold_together(ranges: Path) -> None:
    with Trace.open(ranges) as trace:
        until = int(trace.operations.start_ns[1])
        part = trace.windowed(
            WindowSelection(nvtx="forward", range=ns(trace, 0 + trace.first_ns, until), devices=(0,))
        )
        assert names(part) == ["gemm"]
        assert part.window is not None and dict(part.window.asked).keys() == {"range", "nvtx", "device"}


# Ranks and devices


@pytest.fixture
def two_ranks(tmp_path: Path) -> Path:
    """Process 300 comes first in the file, process 200 has two devices."""
    builder = TraceBuilder(pid=300)
    builder.launch("of 300", 100, pid=300)
    builder.launch("of 200", 100, pid=200).launch("on another", 100, pid=200, device=1)
    builder.call("cudaDeviceSynchronize", pid=200)
    return builder.write(tmp_path / "run.sqlite")


def test_ranks_are_processes_in_order(two_ranks: Path) -> None:
    with Trace.open(two_ranks) as trace:
        assert names(trace.windowed(WindowSelection(ranks=(0,)))) == ["of 200", "on another"]
        part = trace.windowed(WindowSelection(ranks=(1,)))
        assert names(part) == ["of 300"] and len(part.calls) == 1
        assert part.window is not None
        assert "pid 300" in part.window.text and "the file does not contain them" in part.window.text
        assert len(names(trace.windowed(WindowSelection(ranks=(0, 1))))) == 3
        for rank in (2, -1):
            with pytest.raises(UsageError, match=f"--rank {rank}: the trace has rank 0, 1"):
                trace.windowed(WindowSelection(ranks=(rank,)))


def test_a_rank_that_the_recorder_noted(tmp_path: Path) -> None:
    path = (
        TraceBuilder().launch("a", 10).row("PYREC_META", name="rank", value="5").write(tmp_path / "r.sqlite")
    )
    with Trace.open(path) as trace:
        part = trace.windowed(WindowSelection(ranks=(5,)))
        assert part.window is not None and "stored by the recorder" in part.window.text
        with pytest.raises(UsageError, match="the trace has rank 5"):
            trace.windowed(WindowSelection(ranks=(0,)))


def test_devices(two_ranks: Path) -> None:
    with Trace.open(two_ranks) as trace:
        part = trace.windowed(WindowSelection(devices=(1,)))
        assert names(part) == ["on another"]
        # What was launched for other devices is no part of this; what was not launched may be.
        assert [part.calls.names[i] for i in part.calls.name] == ["cudaLaunchKernel", "cudaDeviceSynchronize"]
        assert [(d.pid, d.device) for d in overlap(part).devices] == [(200, 1)]
        assert gaps(part).span_ns == 100
        with pytest.raises(UsageError, match="--device 7: the trace has device 0, 1"):
            trace.windowed(WindowSelection(devices=(7,)))
        with pytest.raises(NotEnoughDataError, match="no GPU operation in this window"):
            trace.windowed(WindowSelection(devices=(1,), ranks=(1,)))


def test_a_device_that_pauses_all_the_time_is_idle(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start, device in ((2000, 0), (2000, 1), (2100, 0), (2900, 0), (2900, 1)):
        builder.launch("a", 50 * US, start_ns=start * US, device=device)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        part = trace.windowed(WindowSelection(range=ns(trace, 2100 * US, 2200 * US)))
        result = gaps(part)
        assert (result.idle_ns, result.span_ns) == (150 * US, 200 * US)
        assert [device.level_ns[0] for device in overlap(part).devices] == [50 * US, 100 * US]


def test_all_of_it_is_the_trace_itself(three_steps: Path) -> None:
    with Trace.open(three_steps) as trace:
        assert (
            trace.windowed(WindowSelection()) is trace
            and trace.windowed(WindowSelection(steps_by="x")) is trace
        )
        assert trace.whole is trace and trace.calls_inside.all() and trace.ranges_inside.all()


# Real traces


def test_the_steps_of_the_demo_add_up() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        whole = steps(trace)
        parts = [trace.windowed(WindowSelection(step=str(i))) for i in range(4)]
        for row, part in zip(whole.rows, parts, strict=True):
            assert gaps(part).parts_ns == (row.compute_ns, row.communication_ns, row.copy_ns, row.idle_ns)
            assert part.calls_inside.all() and steps(part).rows[0].wall_ns == row.wall_ns
        idle = sum(gaps(part).idle_ns for part in parts)
        assert idle == gaps(trace.windowed(WindowSelection(step=":"))).idle_ns < gaps(trace).idle_ns


def test_ranks_of_fsdp(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        parts = [trace.windowed(WindowSelection(ranks=(rank,))) for rank in (0, 1)]
        assert sum(len(part.operations) for part in parts) == len(trace.operations)
        assert [set(part.operations.device.tolist()) for part in parts] == [{0}, {1}]
        whole = coverage(trace, trace.stacks.own_rows(Ownership()))
        each = [coverage(part, part.stacks.own_rows(Ownership())) for part in parts]
        assert sum(part.gpu_ns for part in each) == whole.gpu_ns
        assert sum(part.busy_ns for part in each) == whole.busy_ns


def test_torch_profiler(captures: Path) -> None:
    with Trace.open(captures / "resnet50_num_workers_0.pt.trace.json.gz") as trace:
        part = trace.windowed(WindowSelection(step="2"))
        row = steps(trace).rows[2]
        assert steps(part).rows[0].name == row.name
        assert gaps(part).idle_ns == row.idle_ns
        loading = trace.windowed(WindowSelection(nvtx="enumerate.*DataLoader.*", step="2"))
        assert gaps(loading).rows[0].cause == "data loading" and gaps(loading).idle_frac > 0.8
