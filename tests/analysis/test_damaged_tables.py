# SPDX-License-Identifier: Apache-2.0
"""The summary tables over damaged files: an answer that adds up, or one sentence."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders import VM, TraceBuilder
from damage import answer_or_sentence, each_without_a_part, put_wild_values

from profiling_lab.analysis.apis import apis
from profiling_lab.analysis.copies import copies
from profiling_lab.analysis.kernels.kernels import top_kernels
from profiling_lab.analysis.kernels.launches import launches
from profiling_lab.analysis.overlap.streams import streams
from profiling_lab.analysis.ranges.ranges import ranges
from profiling_lab.analysis.stats import Stats
from profiling_lab.analysis.syncs import syncs
from profiling_lab.trace import Trace
from profiling_lab.trace.window import WindowSelection


def program(form: str) -> TraceBuilder:
    builder = TraceBuilder(form=form)
    for step in range(3):
        begin = builder.now_ns
        builder.copy("HtoD", 900, source=0, target=2, stack="train.py:3 main")
        builder.launch("gemm", 4000, stack="model.py:5 forward", peek=step).memset(20, memory=2)
        row = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1]
        row |= {"gridX": 2, "gridY": 1, "gridZ": 1, "blockX": 64, "blockY": 1, "blockZ": 1}
        row |= {"registersPerThread": 40, "staticSharedMemory": 0, "dynamicSharedMemory": 0}
        builder.launch("gemm_bwd", 3000, thread=2, node=step, node_name="MmBackward0", stream=9)
        builder.copy("DtoH", 10, size_bytes=4, source=2, target=1)
        builder.call("cudaStreamSynchronize_v3020", call_ns=5000, stack="train.py:9 main")
        builder.call("cudaEventQuery_v3020", thread=4)
        inner = builder.now_ns
        builder.launch("relu", 10).range("aten::relu, seq = 3, op_id = 1", inner, builder.now_ns)
        builder.range("step", begin, builder.now_ns, eventType=60, endGlobalTid=builder.tid(1))
        builder.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=begin,
            end=begin + 50,
            deviceId=0,
            contextId=1,
            streamId=7,
            correlationId=step,
            globalPid=VM | builder.pid << 24,
            syncType=3,
            eventId=0,
        )
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200", smCount=132, maxWarpsPerSm=64)
    builder.row(
        "TARGET_INFO_CUDA_STREAM", streamId=7, hwId=0, vmId=1, processId=100, contextId=1, priority=0, flag=3
    )
    return builder


def sound(*all_stats: Stats) -> None:
    for stats in all_stats:
        assert stats.count >= 0 and stats.total >= 0
        if stats.count:
            assert stats.shortest <= stats.median <= stats.longest
            assert stats.shortest <= stats.average <= stats.longest


def ask(trace: Trace) -> None:
    """Every table, each on its own: one that cannot be made does not keep the others from it."""

    def apis_add_up() -> None:
        result = apis(trace)
        sound(*(row.stats for row in result.rows))
        assert sum(row.stats.total for row in result.rows) == result.total_ns

    def launches_are_sound() -> None:
        for row in launches(trace).rows:
            sound(row.phases.total, row.phases.call, row.phases.queue, row.phases.kernel)

    def copies_add_up() -> None:
        result = copies(trace)
        sound(*(row.times for row in result.rows))
        assert sum(row.times.total for row in result.rows) == result.total_ns

    def syncs_add_up() -> None:
        result = syncs(trace)
        assert sum(row.stats.count for row in result.rows) == result.waits
        assert result.idle_ns >= 0 and result.useful_ns >= 0
        assert sum(row.idle_ns for row in result.rows) == result.idle_ns

    def ranges_add_up() -> None:
        for tree in (False, True):
            result = ranges(trace, tree)
            sound(*(row.host for row in result.rows), *(row.projected for row in result.rows))
            assert sum(row.host.count + row.unfinished for row in result.rows) == result.ranges

    def streams_add_up() -> None:
        result = streams(trace)
        for device in result.devices:
            assert sum(device.level_ns) == device.span_ns
        for row in result.rows:
            assert row.idle_ns >= 0 and row.shared_ns <= row.busy_ns

    def kernels_add_up() -> None:
        total = int(trace.operations.duration_ns.sum())
        for by in ("name", "short", "grid", "line", "shape"):
            with answer_or_sentence():
                found = top_kernels(trace, group_by=by, phases=True, shapes=by == "grid").rows  # type: ignore[arg-type]
                assert sum(row.total_ns for row in found) == total

    for question in (
        apis_add_up,
        launches_are_sound,
        copies_add_up,
        syncs_add_up,
        ranges_add_up,
        streams_add_up,
        kernels_add_up,
    ):
        with answer_or_sentence():
            question()


def use(path: Path, window: bool = True) -> None:
    with answer_or_sentence(), Trace.open(path) as trace:
        ask(trace)
        if window:
            ask(trace.windowed(WindowSelection(range="10us:60us")))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("form", ["recorder", "nsys"])
def test_damaged_values(tmp_path: Path, form: str, seed: int) -> None:
    path = program(form).write(tmp_path / "t.sqlite")
    put_wild_values(path, random.Random(seed), 4)
    use(path)


def test_tables_and_columns_may_be_missing(tmp_path: Path) -> None:
    mine = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "NVTX", "TARGET_INFO", "ThreadNames")
    for path in each_without_a_part(program("nsys").write(tmp_path / "whole.sqlite"), mine):
        use(path, window=False)
