# SPDX-License-Identifier: Apache-2.0
"""The last all-reduce of each step"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.exposed_allreduce import RULE

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def steps(tail_ns: int, *, ranges: bool = True, backward: bool = True) -> TraceBuilder:
    """Forward, backward with an all-reduce that overlaps it, and the last one reaching `tail_ns` beyond."""
    builder, at = TraceBuilder(), 2_000_000
    node = {"node": 0, "node_name": "MmBackward0", "thread": 2} if backward else {}
    for number in range(5):
        builder.launch("gemm", 100_000, start_ns=at, stack="/app/train.py:8 main", peek=1)
        builder.launch("gemm_bwd", 100_000, start_ns=at + 100_000, **node)
        builder.launch(NCCL, 50_000 + tail_ns, start_ns=at + 150_000, stream=20, stack="/app/train.py:9 main")
        builder.launch("adam", 10_000, start_ns=at + 200_000 + tail_ns, stack="/app/train.py:10 main")
        if ranges:
            builder.range(f"ProfilerStep#{number}", at, at + 210_000 + tail_ns)
        at += 220_000 + tail_ns
    return builder


def test_fires_for_the_part_after_backward(judge: Judge) -> None:
    (finding,) = judge(RULE, steps(40_000))
    assert finding.cost_ns == 5 * 40_000 and finding.events == 5 and finding.place.line == 9
    assert "each step ends with 0.040 ms of exposed communication" in finding.what
    assert finding.per_step_ns == 40_000


def test_fires_where_backward_is_unknown(judge: Judge) -> None:
    (finding,) = judge(RULE, steps(40_000, backward=False))
    assert finding.cost_ns == 5 * 40_000


def test_silent_where_it_ends_with_backward(judge: Judge) -> None:
    assert judge(RULE, steps(0)) == []


def test_silent_without_communication(judge: Judge) -> None:
    assert judge(RULE, TraceBuilder().launch("gemm", 10)) == ()


def test_abstains_where_steps_cannot_be_found(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("gemm", 10).launch(NCCL, 10))
    assert isinstance(verdict, Abstain) and "steps" in verdict.reason and "prof.step()" in verdict.to_record
