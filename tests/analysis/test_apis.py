# SPDX-License-Identifier: Apache-2.0
"""Calls by function and launches by phase."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import CALL_NS, TraceBuilder

from profiling_lab.analysis.apis import ApisResult, apis
from profiling_lab.analysis.kernels.launches import launches
from profiling_lab.analysis.stats import Stats
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"
WATCHDOG = 9


def apis_of(builder: TraceBuilder, folder: Path) -> ApisResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return apis(trace)


def test_statistics_and_lines_of_each_call(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 100, stack="train.py:3 main > model.py:5 forward")
    builder.launch("gemm", 100, stack="model.py:5 forward")
    builder.call("cudaMalloc_v3020", call_ns=90, stack="train.py:9 main")
    builder.call("cudaMalloc_v3020_ptsz", call_ns=10, stack="train.py:9 main")
    builder.call("cudaMalloc", call_ns=50, stack="train.py:10 main")
    builder.call("cudaFree", call_ns=7)
    result = apis_of(builder, tmp_path)
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["cudaLaunchKernel", "cudaMalloc", "cudaFree"]
    assert rows["cudaMalloc"].stats == Stats(3, 150, 50, 50, 10, 90, 40)
    assert rows["cudaFree"].stats.deviation is None, "one value has no spread"
    assert [rows[name].kind for name in rows] == ["launches", "memory", "memory"]
    places = rows["cudaMalloc"].places
    assert [(str(p.frame), p.ns, p.count) for p in places] == [
        ("train.py:9 main", 100, 2),
        ("train.py:10 main", 50, 1),
    ]
    assert sum(p.share_frac for p in places) == pytest.approx(1)
    (nowhere,) = rows["cudaFree"].places
    assert (nowhere.frame, nowhere.reason) == (None, "no Python stack")
    assert result.total_ns == 2 * CALL_NS + 157 and result.calls == 6
    assert sum(row.share_frac for row in result.rows) == pytest.approx(1)


def test_a_launch_in_backward_is_charged_to_the_forward_line(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10, stack="model.py:5 forward", peek=1)
    builder.launch("gemm_bwd", 10, node=0, node_name="MmBackward0", thread=2)
    (row,) = apis_of(builder, tmp_path).rows
    assert [(p.phase, str(p.frame)) for p in row.places] == [
        ("backward", "model.py:5 forward"),
        ("forward", "model.py:5 forward"),
    ]
    assert row.threads == 2


def test_where_there_is_no_line_the_range_is_named(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys")
    begin = builder.now_ns
    builder.launch("gemm", 10).range("aten::mm, seq = 3, op_id = 4", begin, builder.now_ns - 1)
    builder.call("cudaMalloc")
    rows = {row.name: row.places[0] for row in apis_of(builder, tmp_path).rows}
    assert rows["cudaLaunchKernel"].within == "aten::mm" and rows["cudaMalloc"].within == ""


def test_the_row_that_carries_a_call_chain_is_no_call(tmp_path: Path) -> None:
    builder = TraceBuilder(form="nsys").launch("gemm", 10, stack="train.py:3 main")
    assert {row["eventClass"] for row in builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]} == {0, 67}
    (row,) = apis_of(builder, tmp_path).rows
    assert (row.name, row.stats.count) == ("cudaLaunchKernel", 1)


def test_launches_that_wait_for_a_full_queue(tmp_path: Path) -> None:
    """CUPTI notes the time as overhead of kind 8; what reaches beyond the call is not its."""
    builder = TraceBuilder()
    begin = builder.now_ns
    builder.launch("gemm", 10).launch("gemm", 10).call("cudaMalloc")

    def overhead(start_ns: int, ns: int, kind: int, thread: int = 1) -> None:
        builder.row(
            "CUPTI_ACTIVITY_KIND_OVERHEAD",
            start=start_ns,
            end=start_ns + ns,
            globalTid=builder.tid(thread),
            nameId=builder.string("overhead"),
            overheadType=kind,
        )

    overhead(begin + 500, 1000, 8)
    overhead(begin + 2500, 1000, 8)
    overhead(begin + 600, 100, 7)
    overhead(begin + 600, 100, 8, thread=3)
    result = apis_of(builder, tmp_path)
    rows = {row.name: row.queue_full_ns for row in result.rows}
    assert rows == {"cudaLaunchKernel": 1500, "cudaMalloc": 0} and result.queue_full_ns == 1500


def test_polls_of_a_watchdog_are_marked(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10).call("cudaEventQuery_v3020")
    for _ in range(3):
        builder.call("cudaEventQuery_v3020", thread=WATCHDOG).call("cudaStreamQuery_v3020", thread=WATCHDOG)
    builder.row(
        "ThreadNames", nameId=builder.string("pt_nccl_watchdg"), priority=0, globalTid=builder.tid(WATCHDOG)
    )
    result = apis_of(builder, tmp_path)
    rows = {row.name: row for row in result.rows}
    # The thread that launches asks as well: that is no watchdog.
    assert (rows["cudaEventQuery"].polls, rows["cudaEventQuery"].stats.count) == (3, 4)
    assert rows["cudaEventQuery"].kind == "" and rows["cudaStreamQuery"].kind == "polls"
    assert rows["cudaStreamQuery"].pollers == ("pt_nccl_watchdg",) and result.polls == 6


def test_a_window_counts_its_own_calls_only(tmp_path: Path) -> None:
    """The call that launched what runs in the window lies before it: it tells the line and is not counted."""
    builder = TraceBuilder().launch("gemm", 100_000, stack="model.py:5 forward")
    builder.gap(50_000).call("cudaMalloc", call_ns=10)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        part = trace.windowed(WindowSelection(range="20us:"))
        (row,) = apis(part).rows
        assert row.name == "cudaMalloc" and len(part.calls) == 2
        with pytest.raises(NotEnoughDataError, match="none lies in the part"):
            apis(trace.windowed(WindowSelection(range="80us:90us")))


def test_phases_of_a_launch(tmp_path: Path) -> None:
    """Of three launches one starts inside of its call, one is not queued, one waits in the queue."""
    builder = TraceBuilder()
    begin = builder.now_ns
    builder.launch("gemm", 500, start_ns=begin + 1000, stack="model.py:5 forward")
    builder.launch("gemm", 100, start_ns=builder.now_ns + CALL_NS, stack="model.py:5 forward")
    builder.launch("gemm", 100, start_ns=builder.now_ns + CALL_NS + 700, stack="model.py:6 forward")
    builder.launch("gemm", 100, recorded=False)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        result = launches(trace)
    assert (result.launches, result.queued, result.unrecorded) == (3, 1, 1)
    (row,) = result.rows
    assert (row.api, row.kernel, row.pid, row.tid, row.device) == ("cudaLaunchKernel", "gemm", 100, 100, 0)
    assert row.phases.call == Stats(3, 3 * CALL_NS, CALL_NS, CALL_NS, CALL_NS, CALL_NS, 0)
    assert row.phases.queue == Stats(1, 700, 700, 700, 700, 700, None)
    assert row.phases.kernel.total == 700
    assert row.phases.total.shortest == CALL_NS, "the kernel had ended before the call returned"
    assert row.phases.total.longest == CALL_NS + 800
    assert [p.ns for p in row.places] == [600, 100]


def test_nothing_to_show(tmp_path: Path) -> None:
    with Trace.open(TraceBuilder().call("cudaMalloc").write(tmp_path / "calls.sqlite")) as trace:
        (row,) = apis(trace).rows
        assert row.name == "cudaMalloc", "nothing ran on the GPU, and the call took its time all the same"
        assert "holds no GPU operation" in apis(trace).coverage.notes[0]
        with pytest.raises(NotEnoughDataError, match="no kernel together with the call"):
            launches(trace)
        with pytest.raises(UsageError, match="at least 1"):
            apis(trace, limit=0)
    with (
        Trace.open(TraceBuilder().launch("a", 1, recorded=False).write(tmp_path / "none.sqlite")) as trace,
        pytest.raises(NotEnoughDataError, match="no API call: the program made none"),
    ):
        apis(trace)


def test_fsdp_inference_waits_for_a_value(captures: Path) -> None:
    """`aten::_local_scalar_dense` is what .item() does."""
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        result, phases = apis(trace), launches(trace)
    rows = {row.name: row for row in result.rows}
    assert result.calls == 5796 and result.rows[0].name == "cudaStreamSynchronize"
    assert (rows["cudaStreamSynchronize"].stats.count, rows["cudaStreamSynchronize"].stats.total) == (
        8,
        856929451,
    )
    assert rows["cudaStreamSynchronize"].places[0].within == "aten::_local_scalar_dense"
    assert rows["cudaLaunchKernel"].stats.total == 509738501
    assert rows["cudaLaunchKernelExC"].stats.total == 422539482
    # It looks like the cost of launching; in truth the host waits because the GPU is behind.
    assert result.queue_full_ns == pytest.approx(912e6, rel=1e-3)
    assert rows["cudaStreamSynchronize"].queue_full_ns == 0
    assert (phases.launches, phases.unrecorded) == (1632, 1810)


def test_the_demo() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        result = apis(trace)
        assert launches(trace).launches == 964 and launches(trace).unrecorded == 0
    assert (result.rows[0].name, result.rows[0].kind) == ("cudaStreamSynchronize", "waits")
    assert {str(place.frame).split()[0] for place in result.rows[0].places} == {
        "train_model.py:59",
        "train_model.py:55",
    }
