# SPDX-License-Identifier: Apache-2.0
"""Whose line the host's time is, and calls that the GPU holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import CALL_NS as BUILDER_CALL_NS
from builders import VM, TraceBuilder
from made_traces.machine import CALL_NS, LATENCY_NS, STEPS, Machine, made

from profiling_lab.analysis.critical_path.critical_path import PathOfStep
from profiling_lab.analysis.critical_path.device import LONGEST_NS
from profiling_lab.analysis.critical_path.kinds import UNKNOWN
from profiling_lab.analysis.critical_path.rows import PathLine
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.report.critical_path import verdict
from profiling_lab.trace import Trace

LOST_NS = LATENCY_NS - CALL_NS
"""a step begins with its first kernel: this is how much later than the return of its launch"""
WORK_NS = 900_000


def rows_of(found: PathOfStep) -> dict[str, PathLine]:
    return {row.key.removeprefix("/app/"): row for row in found.by_line().lines}


def two_lines(machine: Machine) -> None:
    """Something between the kernels of lines 10 and 11 takes the host most of the step."""
    machine.kernel(10, 1_000)
    machine.now_ns[1] += LOST_NS + WORK_NS
    machine.kernel(11, 1_000)


def test_long_time_between_two_lines_belongs_to_neither(tmp_path: Path) -> None:
    rows = rows_of(made(two_lines, tmp_path / "run.sqlite"))
    assert rows["between /app/train.py:10 and /app/train.py:11"].kind_ns == {"host code": WORK_NS}
    assert rows["train.py:11"].path_ns < 10_000
    found = made(two_lines, tmp_path / "again.sqlite")
    assert "--sample-python" in found.by_line().notes[-1]


def sampled(machine: Machine) -> None:
    """Two of three samples find the host in prepare.py:3, one in prepare.py:5."""
    begin_ns = machine.now_ns[1] + CALL_NS
    two_lines(machine)
    for number, line in enumerate((3, 3, 5)):
        stack = f"/app/train.py:9 main > /app/prepare.py:{line} load"
        machine.builder.sample(begin_ns + (number + 1) * 200_000, stack)
        # Another thread is somewhere else at the same time.
        machine.builder.sample(begin_ns + (number + 1) * 200_000, "/app/other.py:1 spin", thread=2)


def test_samples_tell_the_lines_of_the_time_between(tmp_path: Path) -> None:
    found = made(sampled, tmp_path / "run.sqlite")
    rows = rows_of(found)
    all_ns = WORK_NS + LOST_NS
    assert rows["prepare.py:3"].path_ns == pytest.approx(all_ns * 2 / 3, abs=LOST_NS + 1)
    assert rows["prepare.py:5"].path_ns == pytest.approx(all_ns / 3, abs=1)
    assert not any("between" in key or "other.py" in key for key in rows)
    assert found.what_if(["prepare.py:3=0.5"]).rows[0].gain_ns == pytest.approx(all_ns / 3, abs=1)
    assert not found.by_line().notes


def collecting(machine: Machine) -> None:
    begin_ns = machine.now_ns[1] + CALL_NS
    two_lines(machine)
    machine.builder.host_event(
        "gc: generation 2", begin_ns + 100_000, begin_ns + 700_000, "/app/train.py:10 main"
    )


def test_a_garbage_collection_is_a_part_of_its_own(tmp_path: Path) -> None:
    found = made(collecting, tmp_path / "run.sqlite")
    rows = rows_of(found)
    assert rows["train.py:10"].kind_ns["garbage collection"] == 600_000
    assert rows["between /app/train.py:10 and /app/train.py:11"].path_ns == WORK_NS - 600_000
    assert found.what_if(["garbage collection=0"]).rows[0].gain_ns == 600_000
    links = [(link.site.key, link.ns) for link in found.chain().links]
    at = [number for number, (key, _) in enumerate(links) if key.startswith("between")]
    assert [links[number][1] for number in at] == [100_000 - LOST_NS, 200_000 + LOST_NS]


def wrote(path: Path, fill: Callable[[TraceBuilder, int], None]) -> PathOfStep:
    builder = TraceBuilder()
    for _ in range(STEPS):
        begin_ns = builder.now_ns
        fill(builder, begin_ns)
        builder.range("training_step", begin_ns, builder.now_ns)
    return PathOfStep(Trace.open(builder.write(path)))


def test_a_launch_that_waits_for_room_in_the_queue_is_not_work(tmp_path: Path) -> None:
    """The GPU is far behind, launches are held, and without the kernels the host would be fast."""
    builder = TraceBuilder()
    for _ in range(STEPS):
        begin_ns = builder.now_ns
        for _ in range(200):
            builder.launch("gemm", 100_000, stack="/app/train.py:7 main")
            busy_ns = builder.gpu_free_ns[0, 7] - builder.now_ns
            if busy_ns > 60_000_000:  # 600 are queued
                held_ns = builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1]
                held_ns["end"] += 95_000
                builder.now_ns += 95_000
        builder.range("training_step", begin_ns, builder.now_ns)
    found = PathOfStep(Trace.open(builder.write(tmp_path / "run.sqlite")))
    path = found.by_line()
    assert path.group_ns[1] == path.step.length_ns, "the GPU sets the pace"
    row = found.what_if(["kernel=0"]).rows[0]
    assert row.after_ns < 3_000_000 < row.before_ns == 20_000_000


def copying(size: int, returns_late: bool) -> Callable[[TraceBuilder, int], None]:
    def fill(builder: TraceBuilder, begin_ns: int) -> None:
        builder.launch("gemm", 50_000, stack="/app/train.py:7 main")
        builder.copy("HtoD", 400_000, source=0, target=2, size_bytes=size, stack="/app/train.py:8 main")
        copy, call = (
            builder.rows["CUPTI_ACTIVITY_KIND_MEMCPY"][-1],
            builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1],
        )
        call["end"] = copy["end"] + (5_000 if returns_late else -20_000)
        builder.now_ns = call["end"] + 2_000
        builder.gap(20_000)

    return fill


def test_a_pageable_copy_holds_its_call(tmp_path: Path) -> None:
    found = wrote(tmp_path / "run.sqlite", copying(1 << 22, True))
    rows = rows_of(found)
    assert rows["train.py:8"].kind_ns["copy"] == 400_000 and rows["train.py:8"].kind_ns["a wait that returns"]
    assert found.what_if(["copy=0.5"]).rows[0].gain_ns == 200_000


def test_a_pageable_copy_that_returns_early_did_not_wait(tmp_path: Path) -> None:
    """The call wrote the last chunk and returned: its time is its own, and no time is unknown."""
    found = wrote(tmp_path / "run.sqlite", copying(1 << 25, False))
    rows = rows_of(found)
    assert rows["train.py:8"].kind_ns["copy call"] > 350_000 and "unknown" not in rows


@pytest.mark.parametrize("after_ns", [1_000, 8_000])
def test_a_small_copy_to_pageable_memory_waits_for_the_work_before_it(tmp_path: Path, after_ns: int) -> None:
    """The call is in the driver until the kernel has ended, however soon the copy begins then."""

    def fill(builder: TraceBuilder, begin_ns: int) -> None:
        builder.launch("gemm", 800_000, stack="/app/train.py:7 main")
        ends_ns = builder.gpu_free_ns[0, 7]
        builder.copy("DtoH", 1_000, source=2, target=0, size_bytes=80, stack="/app/train.py:8 main")
        copy, call = (
            builder.rows["CUPTI_ACTIVITY_KIND_MEMCPY"][-1],
            builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1],
        )
        copy["start"], copy["end"] = ends_ns + after_ns, ends_ns + after_ns + 1_000
        call["end"] = copy["end"] + 40_000
        builder.now_ns = call["end"] + 2_000
        builder.gap(20_000)

    found = wrote(tmp_path / "run.sqlite", fill)
    assert rows_of(found)["train.py:7"].kind_ns["kernel"] == 800_000
    assert found.what_if(["gemm=0.25"]).rows[0].gain_ns == 600_000


def test_freeing_memory_waits_for_the_gpu(tmp_path: Path) -> None:
    def fill(builder: TraceBuilder, begin_ns: int) -> None:
        builder.launch("gemm", 500_000, stack="/app/train.py:7 main")
        begin = builder.now_ns
        end = builder.gpu_free_ns[0, 7] + 30_000
        builder.call("cudaFree", call_ns=end - begin, stack="/app/train.py:9 main")
        builder.now_ns = end + 10_000

    rows = rows_of(wrote(tmp_path / "run.sqlite", fill))
    assert rows["train.py:7"].kind_ns["kernel"] == 500_000
    assert rows["train.py:9"].kind_ns == {"a wait that returns": 30_000}


def test_a_driver_call_inside_of_a_runtime_call_counts_once(tmp_path: Path) -> None:
    def fill(builder: TraceBuilder, begin_ns: int) -> None:
        begin = builder.now_ns
        builder.call("cudaLaunchKernel", call_ns=40_000, stack="/app/train.py:7 main")
        builder.now_ns = begin + 10_000
        builder.launch("gemm", 5_000, stack="/app/train.py:7 main", api="cuLaunchKernel")
        builder.now_ns = begin + 60_000

    found = wrote(tmp_path / "run.sqlite", fill)
    path = found.by_line()
    assert path.step.length_ns == 60_000 and sum(path.group_ns) == 60_000
    assert rows_of(found)["train.py:7"].kind_ns["launch call"] >= 40_000 - LATENCY_NS


def test_without_launches_there_is_no_path(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch("gemm", 5_000, recorded=False)
    with pytest.raises(NotEnoughDataError, match=r"no launches of its GPU operations: .* --trace=cuda"):
        PathOfStep(Trace.open(builder.write(tmp_path / "run.sqlite")))


def test_operations_without_a_launch_are_said(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(8):
        builder.launch("gemm", 5_000, recorded=number > 2, stack="/app/train.py:7 main")
    path = PathOfStep(Trace.open(builder.write(tmp_path / "run.sqlite"))).by_line()
    assert path.notes[0].startswith("the launches of 3 of 8 operations were not recorded")


def test_an_unknown_cause_belongs_to_no_line(tmp_path: Path) -> None:
    """An operation begins long after its launch on an idle GPU: no line is told to have taken that time."""

    def fill(builder: TraceBuilder, begin_ns: int) -> None:
        builder.launch("gemm", 5_000, stack="/app/train.py:7 main", start_ns=builder.now_ns + 600_000)
        builder.now_ns += 700_000
        builder.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=builder.now_ns - 10_000, end=builder.now_ns, deviceId=0, contextId=1, streamId=7,
            correlationId=-1, globalPid=VM | 100 << 24, syncType=3, eventId=0,
        )  # fmt: skip

    found = wrote(tmp_path / "run.sqlite", fill)
    path = found.by_line()
    assert path.group_ns[UNKNOWN] == 600_000 - BUILDER_CALL_NS - LONGEST_NS
    assert rows_of(found)["unknown"].path_ns == path.group_ns[UNKNOWN]
    assert verdict(path).startswith("the step is set by what is unknown for 81")
