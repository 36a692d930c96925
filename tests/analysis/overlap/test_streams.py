# SPDX-License-Identifier: Apache-2.0
"""Streams of devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TraceBuilder

from profiling_lab.analysis.overlap.streams import StreamsResult, streams
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection

RECORDED = Path(__file__).resolve().parents[3] / "profiling_lab/exercises/e17_python_backtrace/recorded"
BEGIN = 2_000_000


def streams_of(builder: TraceBuilder, folder: Path) -> StreamsResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return streams(trace)


@pytest.fixture
def builder() -> TraceBuilder:
    out = TraceBuilder().launch("gemm", 100, start_ns=BEGIN, stack="model.py:5 forward")
    out.launch("gemm", 100, start_ns=BEGIN + 150, stack="model.py:5 forward")
    out.launch("relu", 10, start_ns=BEGIN + 400, stack="model.py:6 forward")
    out.copy("HtoD", 80, start_ns=BEGIN + 50, stream=9, stack="train.py:3 main")
    return out.memset(5, start_ns=BEGIN + 200, stream=9)


def test_streams_of_one_device(builder: TraceBuilder, tmp_path: Path) -> None:
    result = streams_of(builder, tmp_path)
    compute, copying = result.rows
    assert (compute.key, compute.kernels, compute.copies, compute.operations) == ("100/0/7", 3, 0, 3)
    assert (compute.first_ns, compute.last_ns, compute.span_ns) == (BEGIN, BEGIN + 410, 410)
    assert (compute.busy_ns, compute.idle_ns) == (210, 200)
    assert (compute.gaps, compute.longest_gap_ns) == (2, 150)
    assert [(p.key, p.ns) for p in compute.places] == [("model.py:5", 200), ("model.py:6", 10)]
    assert (copying.copies, copying.sets, copying.busy_ns, copying.idle_ns) == (1, 1, 85, 70)
    assert copying.shared_ns == compute.shared_ns == 50 + 5
    assert compute.share_frac == pytest.approx(210 / 295)
    (device,) = result.devices
    # 0-50 one, 50-100 two, 100-130 one, 130-150 none, 150-250 one and for 5 two, 250-400 none, 400-410 one.
    assert (device.streams, device.span_ns, device.level_ns) == (2, 410, (170, 185, 55))
    assert device.concurrency == pytest.approx((185 + 2 * 55) / 240)


def test_devices_and_processes_are_kept_separate(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 10).launch("b", 20, device=1).launch("c", 30, pid=200)
    result = streams_of(builder, tmp_path)
    assert [row.key for row in result.rows] == ["100/0/7", "100/1/7", "200/0/7"]
    assert {row.share_frac for row in result.rows} == {1.0} and len(result.devices) == 3


def test_what_the_file_says_of_its_streams(builder: TraceBuilder, tmp_path: Path) -> None:
    builder.row(
        "TARGET_INFO_CUDA_STREAM",
        streamId=9,
        hwId=0,
        vmId=1,
        processId=100,
        contextId=1,
        priority=(1 << 32) - 5,
        flag=2,
    )
    compute, copying = streams_of(builder, tmp_path).rows
    assert (copying.kind, copying.priority) == ("non-blocking", -5)
    assert (compute.kind, compute.priority) == ("", None)


def test_a_window(builder: TraceBuilder, tmp_path: Path) -> None:
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        zero = trace.first_ns
        part = trace.windowed(WindowSelection(range=f"{BEGIN + 160 - zero}ns:"))
        rows = streams(part).rows
    assert [(row.stream, row.busy_ns, row.operations) for row in rows] == [(7, 100, 2), (9, 5, 1)]


def test_nothing_to_show(tmp_path: Path) -> None:
    with Trace.open(TraceBuilder().call("cudaMalloc").write(tmp_path / "run.sqlite")) as trace:
        with pytest.raises(NotEnoughDataError, match="holds no GPU operation"):
            streams(trace)
        with pytest.raises(UsageError, match="at least 1"):
            streams(trace, limit=0)


def test_fsdp_inference_has_one_busy_stream_per_gpu(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        result = streams(trace)
    assert [(row.pid, row.stream, row.kernels, row.copies) for row in result.rows] == [
        (111, 7, 1721, 452),
        (112, 15, 1721, 452),
    ]
    for row in result.rows:
        assert row.kind == "" and row.idle_ns < 0.01 * row.span_ns, "the file lists other streams only"


def test_the_demo() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        (row,) = streams(trace).rows
    assert (row.stream, row.kind, row.kernels, row.copies, row.sets) == (7, "null", 964, 10, 112)
    assert row.places[0].frame and row.places[0].frame.function == "HeavyLayer.forward"
