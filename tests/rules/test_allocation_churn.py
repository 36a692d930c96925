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


def without_cache(forward_ns: int, *, node: int = 0) -> TraceBuilder:
    """Two layers allocate what they return, forward and backward; no Python runs in backward."""
    builder = TraceBuilder()
    for step in range(30):
        first = 2 * step
        for layer in (0, 1):
            stack = f"/app/model.py:{5 + layer} f"
            builder.call("cudaMalloc_v3020", call_ns=forward_ns, stack=stack, peek=first + layer).gap(
                forward_ns
            )
            builder.launch("addmm", 5_000, stack=stack, peek=first + layer + 1)
        for layer in (1, 0):
            of = {"node": first + layer + node, "node_name": "AddmmBackward0", "thread": 2}
            builder.call("cudaMalloc_v3020", call_ns=(200_000, 100_000)[layer], **of).gap(200_000)
            builder.launch("addmm_backward", 5_000, **of | {"node": first + layer})
    return builder


def test_what_backward_allocates_counts_for_its_line_of_forward(judge: Judge) -> None:
    """Most of it is made where no Python runs: the line is that of the autograd node's kernels."""
    (finding,) = judge(RULE, without_cache(10_000))
    assert finding.place is not None and finding.place.line == 5, finding.place
    assert "at 2 lines, 65.6 % of the time at this one, after warm-up" in finding.what, "210 of 320 µs"
    assert "caching allocator" in finding.remedy


def test_where_a_node_launches_nothing_the_line_is_one_that_is_known(judge: Judge) -> None:
    """Nodes without a kernel have no line: the finding names the line with most of the rest."""
    (finding,) = judge(RULE, without_cache(10_000, node=1_000))
    assert finding.place is not None and finding.place.line in (5, 6)
    assert "at 2 lines, 3.1 % of the time at this one, after warm-up" in finding.what, "10 of 320 µs"


def test_nodes_of_two_threads_with_equal_numbers_are_two(judge: Judge) -> None:
    """Each thread that runs forward counts its own nodes."""
    builder = without_cache(10_000)
    for step in range(60):
        builder.launch("addmm", 5_000, stack="/app/other.py:9 g", peek=step + 1, thread=3)
        of = {"node": step, "node_thread": 3, "node_name": "AddmmBackward0", "thread": 4}
        builder.launch("addmm_backward", 5_000, **of)
    for step in range(60):
        of = {"node": step, "node_thread": 3, "node_name": "AddmmBackward0", "thread": 4}
        builder.call("cudaMalloc_v3020", call_ns=150_000, **of).gap(150_000)
    (finding,) = judge(RULE, builder.launch("addmm", 5_000))
    assert finding.place is not None and (finding.place.file, finding.place.line) == ("/app/other.py", 9)
    assert "at 3 lines, 73.8 % of the time at this one" in finding.what
