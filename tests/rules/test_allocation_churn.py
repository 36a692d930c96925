# SPDX-License-Identifier: Apache-2.0
"""Allocations after warm-up"""

from __future__ import annotations

from pathlib import Path

from builders import Judge, TraceBuilder

from profiling_lab.rules import RULES, Abstain, run
from profiling_lab.rules.allocation_churn import RULE
from profiling_lab.trace import Trace


def training(allocations: int, *, early: bool = False, api: str = "cudaMalloc_v3020") -> TraceBuilder:
    builder = TraceBuilder(form="nsys")
    for i in range(120):
        builder.launch("k", 5_000)
        if (i < allocations) if early else (i >= 120 - allocations):
            builder.call(api, call_ns=100_000, stack="/app/model.py:5 f").gap(100_000)
    builder.launch("k", 5_000)
    return builder


def test_fires_on_allocations_in_the_steps(judge: Judge) -> None:
    (finding,) = judge(RULE, training(6))
    assert finding.events == 6 and finding.cost_ns == 600_000 and finding.place.line == 5
    assert finding.evidence[0].table == "calls"
    assert len(judge(RULE, training(6, api="cudaFree_v3020"))) == 1


def test_silent_on_warm_up_pools_and_a_few(judge: Judge) -> None:
    assert judge(RULE, training(6, early=True)) == []
    assert judge(RULE, training(6, api="cudaMallocAsync_v11020")) == []
    assert judge(RULE, training(3)) == []


def test_recordings_of_ours_note_allocations_so_none_is_none(judge: Judge) -> None:
    ours = TraceBuilder()
    for _ in range(120):
        ours.launch("k", 5_000)
    assert judge(RULE, ours) == []


def test_abstains_where_calls_are_missing_or_the_recording_is_short(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder(form="nsys").launch("k", 5_000))
    assert isinstance(verdict, Abstain) and "too few" in verdict.reason
    verdict = judge(RULE, TraceBuilder(form="nsys").launch("k", 5_000, recorded=False))
    assert isinstance(verdict, Abstain) and "no CUDA API call" in verdict.reason


def test_all_lines_are_one_finding(judge: Judge) -> None:
    """What empty_cache() frees, other lines allocate again."""
    builder = training(6, api="cudaFree_v3020")
    for line in (7, 8):
        builder.call("cudaMalloc_v3020", call_ns=50_000, stack=f"/app/model.py:{line} f").gap(50_000)
    (finding,) = judge(RULE, builder.launch("k", 5_000))
    assert finding.events == 8 and finding.cost_ns == 700_000
    assert finding.place.line == 5 and "8 allocations and frees at 3 lines" in finding.what
    builder.call("cudaHostAlloc_v3020", call_ns=50_000, stack="/app/data.py:3 load").gap(50_000)
    for _ in range(4):
        builder.call("cudaHostAlloc_v3020", call_ns=50_000, stack="/app/data.py:3 load").gap(50_000)
    device, pinned = judge(RULE, builder.launch("k", 5_000))
    assert (device.events, pinned.events, pinned.place.line) == (8, 5, 3), "pinned memory has another remedy"


def concatenating(frees_at: int) -> TraceBuilder:
    """Each step a result is concatenated anew, 300 µs on the GPU, for which the host allocates and frees."""
    builder = TraceBuilder()
    for step in range(20):
        begin_ns = builder.now_ns
        for _ in range(10):
            builder.launch("k", 20_000, stack="/app/a.py:3 main").gap(10_000)
        builder.call("cudaFree_v3020", call_ns=200_000, stack=f"/app/a.py:{frees_at} append").gap(200_000)
        builder.call("cudaMalloc_v3020", call_ns=100_000, stack="/app/a.py:7 append").gap(100_000)
        builder.launch("CatArrayBatchedCopy<int>", 300_000, stack="/app/a.py:7 append").gap(10_000)
        builder.range(f"training_step {step}", begin_ns, builder.now_ns)
    return builder


def test_room_for_a_growing_result_saves_its_copies_too(tmp_path: Path) -> None:
    """But not if something else, as empty_cache(), gives back the memory of all lines."""
    for frees_at, copies_go in ((7, True), (9, False)):
        with Trace.open(concatenating(frees_at).write(tmp_path / f"{frees_at}.sqlite")) as trace:
            (found,) = (f for f in run(trace, RULES).findings if f.rule == "allocation_churn")
        assert found.saving is not None and found.gain_per_step_ns is not None
        assert bool(len(found.saving.operations)) == copies_go
        assert (found.gain_per_step_ns > 200_000) == copies_go, "the GPU is slower than the host"
