# SPDX-License-Identifier: Apache-2.0
"""Exposed communication"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.communication import RULE

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(hidden: bool, kernel: str = NCCL, stream: int = 20) -> TraceBuilder:
    builder = TraceBuilder()
    for i in range(10):
        at = 2_000_000 + i * 150_000
        builder.launch("gemm", 100_000, start_ns=at, stream=7)
        at += 0 if hidden else 100_000
        builder.launch(kernel, 50_000, start_ns=at, stream=stream, stack="/app/train.py:8 main")
    return builder


def test_fires_for_what_nothing_hides(judge: Judge) -> None:
    (finding,) = judge(RULE, step(hidden=False))
    assert finding.cost_ns == 10 * 50_000 and finding.place.line == 8 and finding.events == 10
    assert "communicates for 0.500 ms; 0.500 ms of it" in finding.what
    assert "only 0.0 % overlaps with compute" in finding.what


def test_says_when_it_could_not_overlap_compute(judge: Judge) -> None:
    (finding,) = judge(RULE, step(hidden=False))
    assert "stream" not in finding.what
    (finding,) = judge(RULE, step(hidden=False, stream=7))
    assert finding.what.endswith("most of it runs on a compute stream")


def test_symmetric_memory_communicates_too(judge: Judge) -> None:
    (finding,) = judge(RULE, step(hidden=False, kernel="multimem_all_reduce_kernel"))
    assert finding.cost_ns == 500_000


def test_silent_where_computing_hides_it(judge: Judge) -> None:
    assert judge(RULE, step(hidden=True)) == []


def test_silent_on_one_gpu(judge: Judge) -> None:
    assert judge(RULE, TraceBuilder().launch("gemm", 100)) == ()


def test_abstains_where_several_gpus_never_talk(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("gemm", 100).launch("gemm", 100, device=1))
    assert isinstance(verdict, Abstain) and "2 GPUs are used" in verdict.reason
