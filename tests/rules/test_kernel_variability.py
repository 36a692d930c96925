# SPDX-License-Identifier: Apache-2.0
"""Kernels that take very different times"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.kernel_variability import RULE


def launches(*times_ns: int, line: int = 7) -> TraceBuilder:
    builder = TraceBuilder()
    for ns in times_ns:
        builder.launch("gemm", ns, stack=f"/app/model.py:{line} f")
    return builder


def test_fires_with_what_lies_beyond_the_median(judge: Judge) -> None:
    (finding,) = judge(RULE, launches(*[10_000] * 24, 200_000))
    assert finding.cost_ns == 190_000 and finding.place.line == 7 and finding.confidence == "low"
    assert "25 launches of gemm take 0.010 ms in the median and up to 0.200 ms" in finding.what
    assert finding.evidence[0].row == 24, "the slowest is the first evidence"


def test_lines_are_not_mixed(judge: Judge) -> None:
    builder = launches(*[10_000] * 20)
    for _ in range(20):
        builder.launch("gemm", 200_000, stack="/app/model.py:8 f")
    assert judge(RULE, builder) == [], "one line multiplies large matrices, the other small ones"


def test_silent_where_launches_agree(judge: Judge) -> None:
    assert judge(RULE, launches(*[10_000] * 20, *[30_000] * 5)) == []


def test_abstains_where_no_kernel_is_launched_often(judge: Judge) -> None:
    verdict = judge(RULE, launches(*[10_000] * 5))
    assert isinstance(verdict, Abstain) and "20 times" in verdict.reason


def test_collectives_are_one_finding_and_need_no_padding(judge: Judge) -> None:
    builder = TraceBuilder()
    for line in (7, 8, 9):
        for ns in (*[10_000] * 24, 200_000):
            builder.launch(f"ncclDevKernel_AllReduce_{line}", ns, stack=f"/app/model.py:{line} f")
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 3 * 190_000 and finding.events == 75
    assert "ranks" in finding.remedy and "bucket" not in finding.remedy
