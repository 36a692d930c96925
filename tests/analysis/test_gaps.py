# SPDX-License-Identifier: Apache-2.0
"""Idle time and its causes: the ladder step by step, against an oracle, and on real traces."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest
from builders import TraceBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_lab import _analysis
from profiling_lab.analysis.gaps.causes import CAUSES, LATENCY_NS, Cause
from profiling_lab.analysis.gaps.gaps import GapsResult, gaps
from profiling_lab.analysis.gaps.longest import longest_gaps
from profiling_lab.analysis.gaps.pieces import gap_pieces
from profiling_lab.analysis.gaps.rows import GapRow
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace import Trace

RECORDED = Path(__file__).resolve().parents[2] / "profiling_lab/exercises/e17_python_backtrace/recorded"
US = 1000


def gaps_of(builder: TraceBuilder, folder: Path) -> GapsResult:
    with Trace.open(builder.write(folder / "run.sqlite")) as trace:
        result = gaps(trace)
        pieces = gap_pieces(trace)
    assert sum(row.idle_ns for row in result.rows) == result.idle_ns == result.parts_ns[3]
    assert (pieces.end_ns > pieces.start_ns).all()
    return result


def cause(result: GapsResult, which: Cause) -> GapRow:
    (row,) = [row for row in result.rows if row.cause == CAUSES[which]]
    return row


def by_cause(result: GapsResult) -> dict[str, int]:
    """Idle microseconds by cause."""
    out: dict[str, int] = {}
    for row in result.rows:
        out[row.cause] = out.get(row.cause, 0) + row.idle_ns // US
    return out


def test_a_gap_is_cut_at_its_launch(tmp_path: Path) -> None:
    """GPU busy until 1,100 us; the launch is made from 1,150 to 1,153 us; the kernel starts at 1,157 us."""
    builder = TraceBuilder().launch("first", 90 * US, start_ns=1010 * US, stack="/app/t.py:1 main")
    builder.now_ns = 1150 * US
    builder.launch("second", 10 * US, start_ns=1157 * US, stack="/app/t.py:2 main")
    result = gaps_of(builder, tmp_path)
    found = {row.cause: (row.idle_ns, row.frame.line if row.frame else 0, row.exact) for row in result.rows}
    assert found == {
        "host code": (50 * US, 2, False),
        "inside a CUDA call": (3 * US, 2, True),
        "launch latency": (4 * US, 2, True),
    }
    ((frame, after_ns),) = cause(result, Cause.HOST_CODE).after
    assert (frame.line, after_ns) == (1, 50 * US), "the host was between lines 1 and 2"
    assert (result.gaps, result.late_frac) == (1, 0.5)


def test_what_the_host_did_before_the_launch(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("first", 90 * US, start_ns=1010 * US, stack="/app/t.py:1 main")
    builder.now_ns = 1050 * US  # the host waits from 1,050 to 1,110: the GPU is done at 1,100
    builder.call("cudaStreamSynchronize", call_ns=60 * US, stack="/app/t.py:2 main")
    builder.now_ns = 1120 * US
    builder.call("cudaMalloc_v3020", call_ns=30 * US, stack="/app/t.py:3 main")
    builder.range("enumerate(DataLoader)#_Iter.__next__", 1160 * US, 1200 * US)
    builder.now_ns = 1210 * US
    builder.call("cudaEventQuery", call_ns=1 * US)
    builder.now_ns = 1220 * US
    builder.launch("second", 10 * US, start_ns=1223 * US, stack="/app/t.py:4 main")
    result = gaps_of(builder, tmp_path)
    assert by_cause(result) == {
        "a wait that returns": 10,
        "host code after a wait": 40,
        "allocation": 30,
        "data loading": 40,
        "inside a CUDA call": 3,
    }
    assert cause(result, Cause.ALLOCATOR).frame.line == 3  # type: ignore[union-attr]
    assert cause(result, Cause.WAIT).what == "cudaStreamSynchronize"
    assert cause(result, Cause.DATA_LOADING).frame is None, "no line of the loader is recorded: none is named"
    assert (result.host_waits, result.host_wait_ns) == (1, 60 * US)


def test_the_line_of_the_launch_that_ends_a_gap(tmp_path: Path) -> None:
    """The host was in a wait at line 2; what the GPU was waiting for is launched by line 3."""
    builder = TraceBuilder().launch("first", 90 * US, start_ns=1010 * US, stack="/app/t.py:1 main")
    builder.now_ns = 1050 * US
    builder.call("cudaStreamSynchronize", call_ns=60 * US, stack="/app/t.py:2 main")
    builder.now_ns = 1120 * US
    builder.launch("second", 10 * US, start_ns=1123 * US, stack="/app/t.py:3 main")
    result = gaps_of(builder, tmp_path)
    wait, after = cause(result, Cause.WAIT), cause(result, Cause.AFTER_WAIT)
    assert [(frame.line, ns) for frame, ns in wait.until] == [(3, 10 * US)]
    assert after.frame is not None and after.frame.line == 3 and after.until == (), "it says so already"


def test_what_the_file_says_of_cuda_the_system_and_the_profiler(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("first", 90 * US, start_ns=1010 * US)
    tid = builder.tid(1)
    for kind, start in ((7, 1110), (5, 1120), (99, 1130)):
        builder.row(
            "PROFILER_OVERHEAD",
            start=start * US,
            end=(start + 5) * US,
            globalTid=tid,
            nameId=builder.string("lazy"),
            overheadType=kind,
        )
    read = builder.string("read")
    builder.now_ns = 1200 * US
    builder.launch("second", 10 * US, start_ns=1203 * US)
    path = builder.write(tmp_path / "run.sqlite")
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER)")
        file.execute("INSERT INTO OSRT_API VALUES (?, ?, ?, ?)", (1140 * US, 1190 * US, tid, read))
    file.close()
    with Trace.open(path) as trace:
        result = gaps(trace)
    assert by_cause(result) == {
        "host code": 40,
        "host blocked in the system": 50,
        "loading GPU code": 5,
        "the profiler itself": 5,
        "inside a CUDA call": 3,
    }
    assert cause(result, Cause.SYSTEM_CALL).what == "read"


def test_a_thread_that_was_descheduled(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("first", 90 * US, start_ns=1010 * US)
    builder.now_ns = 1200 * US
    builder.launch("second", 10 * US, start_ns=1203 * US)
    builder.range("forward", 1000 * US, 1200 * US)
    path = builder.write(tmp_path / "run.sqlite")
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE SCHED_EVENTS (start INTEGER, cpu, isSchedIn INTEGER, globalTid INTEGER)")
        for thread, at, back in (
            (1, 1090, 0),
            (1, 1120, 1),
            (1, 1150, 0),
            (2, 1155, 1),
            (1, 1160, 1),
            (1, 1190, 0),
        ):
            file.execute("INSERT INTO SCHED_EVENTS VALUES (?, 0, ?, ?)", (at * US, back, builder.tid(thread)))
    file.close()
    with Trace.open(path) as trace:
        result = gaps(trace)
    # From 1,100 to 1,120 and from 1,150 to 1,160; it never came back from the last time: that is not known.
    assert by_cause(result) == {"host thread off the CPU": 30, "host code": 70, "inside a CUDA call": 3}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Waiting for GIL", "waiting for the GIL"),
        ("gc collect generation 2", "garbage collection"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data loading"),
        ("forward", "host code"),
    ],
)
def test_ranges_that_name_a_cause(tmp_path: Path, name: str, expected: str) -> None:
    builder = TraceBuilder().launch("a", 90 * US, start_ns=1010 * US)
    builder.range(name, 1110 * US, 1140 * US)
    builder.now_ns = 1150 * US
    builder.launch("b", 10 * US, start_ns=1153 * US)
    found = {(row.cause, row.what): row.idle_ns // US for row in gaps_of(builder, tmp_path).rows}
    assert found[expected, name] == 30


def test_the_thread_that_was_at_work_is_charged(tmp_path: Path) -> None:
    """Forward and backward run on two threads: until the main thread is done, the engine's is not late."""
    builder = TraceBuilder().launch("forward", 90 * US, start_ns=1010 * US, stack="/app/t.py:1 main")
    builder.now_ns = 1050 * US
    builder.call("cudaStreamSynchronize", call_ns=70 * US, stack="/app/t.py:2 main")
    builder.now_ns = 1150 * US
    builder.launch("backward", 10 * US, start_ns=1153 * US, thread=2, node=0, node_name="MmBackward0")
    result = gaps_of(builder, tmp_path)
    assert by_cause(result) == {
        "a wait that returns": 20,
        "host code after a wait": 30,
        "inside a CUDA call": 3,
    }
    assert cause(result, Cause.WAIT).frame.line == 2  # type: ignore[union-attr]


def test_a_collection_between_forward_and_backward_is_of_the_thread_that_it_stops(tmp_path: Path) -> None:
    """It begins while the GPU still works on forward, behind the last call of the main thread."""
    builder = TraceBuilder()
    builder.launch("forward", 100 * US, stack="/app/train.py:7 main", peek=1)
    collected = builder.now_ns
    builder.host_event("gc generation 2", collected, collected + 900 * US, "/app/train.py:8 main")
    builder.gap(920 * US)
    builder.launch("backward", 10 * US, thread=2, node=0, node_name="MmBackward0")
    found = by_cause(gaps_of(builder, tmp_path))
    assert found["garbage collection"] == pytest.approx(802, abs=5), found
    assert found["host code"] == pytest.approx(20, abs=5), "from there to the launch"


def test_what_happens_after_the_launch(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.launch("a", 100 * US, start_ns=1100 * US).launch("b", 100 * US, start_ns=1203 * US)
    builder.launch("c", 100 * US, start_ns=1403 * US)
    builder.call("cudaStreamWaitEvent").launch("d", 100 * US, start_ns=1603 * US)
    builder.launch("e", 100 * US, start_ns=1803 * US, recorded=False)
    result = gaps_of(builder, tmp_path)
    assert by_cause(result) == {
        "pause between queued operations": 3,
        "unknown: launched, but started late": 100,
        "waiting for an event": 100,
        "unknown: launch not recorded": 100,
    }
    assert result.unknown_ns == 200 * US


def test_a_blocking_copy_waits_only_once_it_copies(tmp_path: Path) -> None:
    builder = TraceBuilder().launch("a", 90 * US, start_ns=1010 * US)
    builder.now_ns = 1150 * US
    builder.copy("HtoD", 20 * US, start_ns=1152 * US, api="cudaMemcpy_v3020")
    builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["end"] = 1180 * US
    builder.now_ns = 1190 * US
    builder.launch("b", 10 * US, start_ns=1193 * US)
    assert by_cause(gaps_of(builder, tmp_path)) == {
        "host code": 50,  # until the copy's call
        "inside a CUDA call": 2 + 3,
        "a wait that returns": 8,  # the copy is done at 1,172 us
        "host code after a wait": 10,
    }


@pytest.mark.parametrize(("own", "expected"), [(True, "inside a CUDA call"), (False, "a wait that returns")])
def test_a_copy_under_way_when_the_gpu_runs_dry(tmp_path: Path, own: bool, expected: str) -> None:
    """Another operation's copy call waited for the GPU; that of the next operation is only slow to launch."""
    builder = TraceBuilder().launch("a", 90 * US, start_ns=1010 * US)
    builder.now_ns = 1050 * US
    if own:
        builder.copy("HtoD", 20 * US, start_ns=1130 * US)
    else:
        builder.call("cudaMemcpyAsync")
    builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["end"] = 1130 * US
    builder.now_ns = 1130 * US
    builder.launch("b", 10 * US, start_ns=1160 * US)
    assert by_cause(gaps_of(builder, tmp_path))[expected] == 30


def test_idle_time_counts_in_the_step_it_passed_in(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for i in range(4):
        begin = builder.now_ns
        builder.launch("gemm", 10 * US).launch("relu", 10 * US).gap(490 * US)
        builder.range(f"ProfilerStep#{i}", begin, builder.now_ns)
    result = gaps_of(builder, tmp_path)
    assert result.steps == 4
    assert sum(row.per_step_ns or 0 for row in result.rows) == pytest.approx(
        result.idle_ns / 4, abs=len(result.rows)
    )
    assert result.rows[0].cause == "host code" and result.bound_by == "idle"


def test_without_steps_nothing_is_said_per_step(tmp_path: Path) -> None:
    result = gaps_of(TraceBuilder().launch("a", US).gap(50 * US).launch("b", US), tmp_path)
    assert result.steps == 0 and all(row.per_step_ns is None for row in result.rows)


def test_a_busy_gpu_has_no_rows(tmp_path: Path) -> None:
    result = gaps_of(TraceBuilder().launch("a", 50 * US).launch("b", US), tmp_path)
    assert (result.rows, result.idle_ns, result.gaps, result.idle_frac) == ((), 0, 0, 0.0)


def test_nothing_to_look_at(tmp_path: Path) -> None:
    with Trace.open(TraceBuilder().call("cudaMalloc").write(tmp_path / "run.sqlite")) as trace:
        with pytest.raises(NotEnoughDataError):
            gaps(trace)
        with pytest.raises(UsageError):
            gaps(trace, limit=0)


# One thread's timeline: (pause before, length, what); an operation starts `delay` after its launch's start.
_call = st.tuples(
    st.integers(0, 30),
    st.integers(1, 20),
    st.sampled_from(["launch", "wait", "malloc"]),
    st.integers(0, 40),
    st.integers(1, 40),
)


@settings(max_examples=60)
@given(
    timeline=st.lists(_call, min_size=2, max_size=12),
    loading=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=2),
)
def test_every_microsecond_has_the_cause_that_an_oracle_gives_it(
    tmp_path_factory: pytest.TempPathFactory,
    timeline: list[tuple[int, int, str, int, int]],
    loading: list[tuple[int, int]],
) -> None:
    builder = TraceBuilder()
    begin = builder.now_ns // US
    calls: list[tuple[int, int, str]] = []
    operations: list[tuple[int, int, int]] = []
    now = begin
    for pause, length, what, delay, gpu in timeline:
        now += pause
        calls.append((now, now + length, what))
        builder.now_ns = now * US
        if what == "launch":
            free = operations[-1][1] if operations else 0
            start = max(now + delay, free)
            operations.append((start, start + gpu, len(calls) - 1))
            builder.launch("k", gpu * US, start_ns=start * US)
            builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]["end"] = (now + length) * US
        else:
            builder.call({"wait": "cudaDeviceSynchronize", "malloc": "cudaMalloc"}[what], call_ns=length * US)
        now += length
    for start, length in loading:
        builder.range("DataLoader", (begin + start) * US, (begin + start + length) * US)
    if len(operations) < 2:
        return
    with Trace.open(builder.write(tmp_path_factory.mktemp("gaps") / "run.sqlite")) as trace:
        pieces = gap_pieces(trace)
    found = {
        t: Cause(kind)
        for s, e, kind in zip(pieces.start_ns // US, pieces.end_ns // US, pieces.cause.tolist(), strict=True)
        for t in range(s, e)
    }
    assert (pieces.end_ns - pieces.start_ns).sum() == len(found) * US, "no microsecond twice"

    expected: dict[int, Cause] = {}
    for (_, g0, _), (g1, _, launch) in pairwise(operations):
        l1 = calls[launch][1]
        waiting = next((c for c in calls if c[0] < g0 < c[1] and c[2] == "wait"), None)
        for t in range(g0, g1):
            active = next((c for c in calls if c[0] <= t < c[1]), None)
            if t >= l1:
                short = g1 - max(g0, l1) <= LATENCY_NS // US
                late = Cause.BETWEEN if l1 <= g0 else Cause.LATENCY
                expected[t] = late if short else Cause.LATE_START
            elif active:
                expected[t] = {"launch": Cause.CUDA_CALL, "wait": Cause.WAIT, "malloc": Cause.ALLOCATOR}[
                    active[2]
                ]
            elif any(begin + s <= t < begin + s + n for s, n in loading):
                expected[t] = Cause.DATA_LOADING
            else:
                expected[t] = Cause.AFTER_WAIT if waiting else Cause.HOST_CODE
    assert found == expected


@pytest.mark.parametrize(("workers", "idle_ms"), [(0, 393), (4, 187)])
def test_data_loading_is_the_cause_before_and_not_after(captures: Path, workers: int, idle_ms: float) -> None:
    with Trace.open(captures / f"resnet50_num_workers_{workers}.pt.trace.json.gz") as trace:
        result = gaps(trace)
    assert result.idle_ns == pytest.approx(idle_ms * 1e6, abs=0.5e6)
    assert sum(row.idle_ns for row in result.rows) == result.idle_ns and result.steps == 6
    loading_ns = sum(row.idle_ns for row in result.rows if row.cause == "data loading")
    if workers == 0:
        worst = result.rows[0]
        assert worst.cause == "data loading" and worst.exact and worst.frame is not None
        # Line 42 is `for ... in enumerate(trainloader)`: the recorded stack of the loader's __next__.
        assert (worst.frame.file, worst.frame.line) == ("resnet50_profiler_api.py", 42)
        assert worst.share_frac > 0.7 and worst.per_step_ns == pytest.approx(47.3e6, rel=0.01)
    else:
        assert result.rows[0].cause == "host code" and loading_ns < 0.05 * result.idle_ns


def test_each_of_the_longest_gaps_is_a_batch_that_is_loaded(captures: Path) -> None:
    with Trace.open(captures / "resnet50_num_workers_0.pt.trace.json.gz") as trace:
        listed, whole = longest_gaps(trace, limit=5), gaps(trace)
    assert (len(listed.gaps), listed.total_matched) == (5, whole.gaps)
    for gap in listed.gaps:
        assert gap.main.cause == "data loading" and gap.main.exact
        assert gap.until is not None and gap.until.line == 44, "the line that sends the batch to the GPU"
        assert 45e6 < sum(part.idle_ns for part in gap.parts) == gap.idle_ns < 70e6


def test_fsdp_inference_is_not_idle_but_copying(captures: Path) -> None:
    with Trace.open(captures / "fsdp_inference_2xh100.sqlite") as trace:
        result = gaps(trace)
        kernels = trace.operations.kind == 0
        start_ns, end_ns = trace.operations.start_ns, trace.operations.end_ns
        device = trace.operations.device[kernels]
        by_kernels = _analysis.busy_ns(start_ns[kernels], end_ns[kernels], device, 2).sum()
    assert by_kernels < 0.03 * result.span_ns, "looking at kernels alone the GPUs would be idle"
    assert result.idle_frac < 0.01 and result.bound_by == "copy"
    assert result.span_ns == pytest.approx(2 * 969.4e6, rel=1e-3)
    assert result.host_waits == 8 and result.host_wait_ns == pytest.approx(857e6, rel=1e-3)
    assert result.queue_full_ns == pytest.approx(912e6, rel=1e-3)
    assert 0 < result.unknown_ns < result.idle_ns, (
        "launches before the window: their gaps have no known cause"
    )


def test_the_demo() -> None:
    with Trace.open(RECORDED / "demo_h200.sqlite") as trace:
        result = gaps(trace)
    assert result.bound_by == "compute" and 0.03 < result.idle_frac < 0.05 and result.steps == 4
    assert result.unknown_ns == 0 and result.late_frac is not None and result.late_frac < 0.05
    between = sum(r.idle_ns for r in result.rows if r.cause == "pause between queued operations")
    assert between > 0.3 * result.idle_ns
    assert all(row.frame for row in result.rows if row.cause == "pause between queued operations")
