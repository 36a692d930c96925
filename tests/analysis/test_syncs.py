# SPDX-License-Identifier: Apache-2.0
"""Waits of the host: which they are, what they are good for, what they cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import VM, TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab.analysis.host.idle import busy_within, idle_after
from profiling_lab.analysis.syncs import SyncsResult, syncs
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import MemoryKind
from profiling_lab.trace.window import WindowSelection

RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"
PAGEABLE, PINNED, DEVICE = MemoryKind.PAGEABLE, MemoryKind.PINNED, MemoryKind.DEVICE
SYNC = "cudaStreamSynchronize_v3020"


def syncs_of(builder: TraceBuilder, folder: Path) -> SyncsResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        return syncs(trace)


def waiting(builder: TraceBuilder, api: str, ns: int, **how: object) -> TraceBuilder:
    """A call that takes so long; the host goes on after it."""
    builder.call(api, call_ns=ns, **how)  # type: ignore[arg-type]
    return builder.gap(ns)


def sync_row(builder: TraceBuilder, kind: int, start_ns: int, ns: int, **more: int | None) -> None:
    values = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": VM | builder.pid << 24, "eventId": 0}
    values |= {"start": start_ns, "end": start_ns + ns, "syncType": kind} | more
    builder.row("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **values)


def test_a_wait_is_worth_what_the_gpu_does_and_costs_what_it_idles(tmp_path: Path) -> None:
    builder = TraceBuilder()
    begin = builder.now_ns
    builder.launch("gemm", 50_000, start_ns=begin + 4000)  # works until begin + 54 us
    waiting(builder, SYNC, 60_000, stack="train.py:9 main")  # from 5 us to 65 us
    builder.gap(10_000).launch("gemm", 1000)
    start = max(row["start"] for row in builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"])
    (row,) = syncs_of(builder, tmp_path).rows
    assert (row.what, row.api, str(row.place.frame)) == ("stream", "cudaStreamSynchronize", "train.py:9 main")
    assert (row.host_ns, row.useful_ns) == (60_000, 49_000)
    assert row.idle_ns == start - (begin + 54_000)


def test_a_gap_is_charged_to_the_wait_that_ended_in_it_first(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10_000)
    waiting(builder, SYNC, 20_000, stack="train.py:9 main")
    waiting(builder, "cudaDeviceSynchronize", 1_000, stack="train.py:10 main")
    builder.launch("gemm", 1000)
    rows = {row.what: row for row in syncs_of(builder, tmp_path).rows}
    assert rows["stream"].idle_ns > 0 and rows["device"].idle_ns == 0
    assert rows["device"].useful_ns == 0


def test_streams_that_wait_for_events_are_no_waits(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10_000).call("cudaStreamWaitEvent_v3020")
    sync_row(builder, 2, builder.now_ns, 900, correlationId=99)
    result = syncs_of(builder, tmp_path)
    assert (result.waits, result.rows, result.stream_waits) == (0, (), 1)


@pytest.mark.parametrize(
    ("size", "direction", "source", "target", "what"),
    [
        (4, "DtoH", DEVICE, PINNED, "value read"),
        (64, "DtoH", DEVICE, PAGEABLE, "value read"),
        (65, "DtoH", DEVICE, PAGEABLE, "copy to host"),
        (1 << 20, "HtoD", PAGEABLE, DEVICE, "copy to GPU"),
        (1 << 20, "DtoD", DEVICE, DEVICE, "other copy"),
    ],
)
def test_a_wait_right_after_a_copy_waits_for_it(
    tmp_path: Path, size: int, direction: str, source: int, target: int, what: str
) -> None:
    """What .item(), .cpu() and .cuda() do: an asynchronous copy, and a wait for its stream."""
    builder = TraceBuilder().launch("gemm", 10_000)
    builder.copy(direction, 500, size_bytes=size, source=source, target=target, stack="train.py:9 main")
    waiting(builder, SYNC, 20_000, stack="train.py:9 main")
    (row,) = syncs_of(builder, tmp_path).rows
    assert (row.what, row.api) == (what, "cudaStreamSynchronize")


def test_a_wait_long_after_a_copy_is_one_of_its_own(tmp_path: Path) -> None:
    builder = TraceBuilder().copy("DtoH", 500, size_bytes=4, source=DEVICE, target=PINNED)
    waiting(builder.gap(10_000), SYNC, 20_000)
    (row,) = syncs_of(builder, tmp_path).rows
    assert row.what == "stream"


def test_a_wait_from_the_stack_of_the_copy_waits_for_it_however_late(tmp_path: Path) -> None:
    """A profiler that walks stacks may take long between the two halves of .item()."""
    how = {"stack": "train.py:9 main"}
    builder = TraceBuilder().copy("DtoH", 500, size_bytes=4, source=DEVICE, target=PINNED, **how)
    waiting(builder.gap(10_000), SYNC, 20_000, **how)
    (row,) = syncs_of(builder, tmp_path).rows
    assert row.what == "value read"


def test_nsys_and_our_recorder_see_the_same_waits() -> None:
    """nsys' Python backtraces put up to 14 ms between a copy and its wait."""
    found = []
    for name in ("demo_h200.sqlite", "nsys_h200.sqlite"):
        with Trace.open(RECORDED / name) as trace:
            rows = syncs(trace).rows
        found.append({r.what: (r.place.frame.line, r.stats.count) for r in rows if r.place.frame})
    ours, theirs = found
    assert theirs == {what: ours[what] for what in ("copy to GPU", "value read")}


def test_copies_that_block_their_call(tmp_path: Path) -> None:
    """A blocking copy waits; so does an asynchronous one of pageable memory, unless it is only taken over."""
    builder = TraceBuilder()

    def copy(api: str, source: int, late_ns: int) -> None:
        start = builder.now_ns + late_ns
        builder.operation(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            20_000,
            {"copyKind": 1, "bytes": 1 << 20, "srcKind": source, "dstKind": DEVICE},
            api=api,
            start_ns=start,
        )
        builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["end"] += 20_000
        builder.gap(60_000)

    copy("cudaMemcpy_v3020", PINNED, 1000)
    copy("cudaMemcpyAsync_v3020", PAGEABLE, 1000)
    copy("cudaMemcpyAsync_v3020", PAGEABLE, 30_000)
    copy("cudaMemcpyAsync_v3020", PINNED, 1000)
    rows = {row.api: row for row in syncs_of(builder, tmp_path).rows}
    assert {api: (row.what, row.stats.count) for api, row in rows.items()} == {
        "cudaMemcpy": ("copy to GPU", 1),
        "cudaMemcpyAsync": ("copy to GPU", 1),
    }


def test_waits_inside_of_waits_count_once(tmp_path: Path) -> None:
    """The runtime's call and the driver's that it makes; another thread waits for itself."""
    builder = TraceBuilder().launch("gemm", 10_000)
    begin = builder.now_ns
    builder.call("cudaStreamSynchronize", call_ns=50_000)
    builder.now_ns = begin + 1000
    builder.call("cuStreamSynchronize", call_ns=40_000)
    builder.now_ns = begin + 2000
    builder.call("cudaEventSynchronize", call_ns=30_000, thread=3)
    result = syncs_of(builder, tmp_path)
    assert {row.api: row.host_ns for row in result.rows} == {
        "cudaStreamSynchronize": 50_000,
        "cudaEventSynchronize": 30_000,
    }
    assert (result.waits, result.host_ns, result.longest_thread_ns) == (2, 80_000, 50_000)


def test_a_synchronization_without_its_call(tmp_path: Path) -> None:
    """Recorded from its end on: CUPTI noted the synchronization, the call began before."""
    builder = TraceBuilder().launch("gemm", 10_000)
    sync_row(builder, 3, builder.now_ns, 7_000, correlationId=99)
    waiting(builder, SYNC, 5_000, correlation=50, stack="train.py:9 main")
    sync_row(builder, 3, builder.now_ns - 10_000, 4_900, correlationId=50)
    result = syncs_of(builder, tmp_path)
    assert {(row.api, row.what): row.host_ns for row in result.rows} == {
        ("", "stream"): 7_000,
        ("cudaStreamSynchronize", "stream"): 5_000,
    }
    (unknown,) = (row for row in result.rows if not row.api)
    assert unknown.place.frame is None and unknown.place.reason == "its call was not recorded"


def test_old_files_name_the_kind_elsewhere(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("gemm", 10_000)
    sync_row(builder, 0, builder.now_ns, 7_000, correlationId=99, deprecatedSyncType=4)
    (row,) = syncs_of(builder, tmp_path).rows
    assert row.what == "device"


def test_synchronizations_without_a_process_are_of_the_only_one(tmp_path: Path) -> None:
    """Old files name none. Each is its call all the same, and counts once."""
    builder = TraceBuilder().launch("gemm", 10_000)
    waiting(builder, SYNC, 5_000, correlation=50)
    sync_row(builder, 3, builder.now_ns - 10_000, 4_900, correlationId=50, globalPid=None)
    result = syncs_of(builder, tmp_path)
    assert [(row.api, row.stats.count) for row in result.rows] == [("cudaStreamSynchronize", 1)]


def test_idle_time_outside_of_the_window_costs_nothing(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for name in ("first", "second"):
        begin = builder.now_ns
        builder.launch("gemm", 10_000)
        waiting(builder, SYNC, 20_000, stack="train.py:9 main")
        builder.range(name, begin, builder.now_ns).gap(500_000)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        assert syncs(trace).idle_ns > 500_000
        part = trace.windowed(WindowSelection(nvtx="first|second"))
        assert syncs(part).idle_ns == 0 and syncs(part).waits == 2


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=5),
)
def test_against_an_oracle(
    tmp_path_factory: pytest.TempPathFactory,
    kernels: list[tuple[int, int]],
    intervals: list[tuple[int, int]],
) -> None:
    scale = 10_000  # far beyond what clocks may be apart
    builder = TraceBuilder()
    for start, length in kernels:
        builder.launch("a", length * scale, start_ns=start * scale)
    busy = {t for start, length in kernels for t in range(start, start + length)}
    last = max(busy)
    with Trace.open(builder.write(tmp_path_factory.mktemp("idle") / "run.sqlite")) as trace:
        columns = (
            np.zeros(len(intervals), dtype=np.int32),
            np.array([start * scale for start, _ in intervals], dtype=np.int64),
            np.array([(start + length) * scale for start, length in intervals], dtype=np.int64),
        )
        useful, idle = busy_within(trace, *columns), idle_after(trace, *columns)
    charged: set[int] = set()
    expected = [0] * len(intervals)
    for i, (start, length) in sorted(enumerate(intervals), key=lambda item: sum(item[1])):
        end = start + length
        assert useful[i] == scale * len(busy & set(range(start, end)))
        if end in busy or end > last or end < min(busy):
            continue
        following = min(t for t in busy if t > end)
        if following in charged:
            continue
        charged.add(following)
        gap_start = max(t for t in busy if t < end) + 1
        expected[i] = scale * (following - max(gap_start, start))
    assert idle.tolist() == expected


def test_nothing_recorded(tmp_path: Path) -> None:
    with pytest.raises(NotEnoughDataError, match="neither API calls nor synchronizations"):
        syncs_of(TraceBuilder().launch("a", 1, recorded=False), tmp_path)


def test_a_host_that_never_waits(tmp_path: Path) -> None:
    result = syncs_of(TraceBuilder().launch("a", 1), tmp_path)
    assert (result.rows, result.waits, result.host_ns, result.idle_ns) == ((), 0, 0, 0)


def test_fsdp_inference_waits_eight_times(captures: Path) -> None:
    """236 of its 244 synchronizations are streams that wait for events."""
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        result = syncs(trace)
    assert (result.waits, result.stream_waits, result.host_ns) == (8, 236, 856_929_451)
    rows = {row.what: row for row in result.rows}
    assert rows["value read"].place.within == "aten::_local_scalar_dense"
    assert rows["value read"].host_ns == 856_903_960
    assert result.useful_ns > 0.99 * result.host_ns, "the GPU was copying all the while"
    assert result.longest_thread_ns < result.host_ns, "two threads, each for itself"


def test_the_demo_reads_a_loss_and_loads_batches() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        rows = {row.what: row for row in syncs(trace).rows}
    assert {
        what: (row.place.frame.line, row.stats.count) for what, row in rows.items() if row.place.frame
    } == {
        "copy to GPU": (55, 8),
        "value read": (59, 2),
        "device": (56, 3),
    }


def test_resnet_waits_for_its_batches(captures: Path) -> None:
    with Trace.open(captures / "resnet50_num_workers_0.pt.trace.json.gz") as trace:
        found = syncs(trace)
    rows = {(row.what, row.api): row for row in found.rows}
    copy = rows["copy to GPU", "cudaMemcpyAsync"]
    assert copy.place.frame and copy.place.frame.line == 44 and copy.host_ns > 10_000_000
