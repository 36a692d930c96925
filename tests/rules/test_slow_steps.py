# SPDX-License-Identifier: Apache-2.0
"""Steps that are slower than the others"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.slow_steps import RULE


def steps(*times: tuple[int, int]) -> TraceBuilder:
    """Per step how long its kernel takes, and how long the GPU idles after it."""
    builder, at = TraceBuilder(), 2_000_000
    for number, (gpu_ns, idle_ns) in enumerate(times):
        builder.launch("gemm", gpu_ns, start_ns=at)
        builder.range(f"ProfilerStep#{number}", at, at + gpu_ns + idle_ns)
        at += gpu_ns + idle_ns
    return builder


def test_fires_and_says_what_grew(judge: Judge) -> None:
    (finding,) = judge(RULE, steps(*[(100_000, 0)] * 6, (100_000, 300_000), (100_000, 0)))
    assert finding.cost_ns == 300_000 and finding.events == 1 and [e.row for e in finding.evidence] == [6]
    assert "1 of 8 steps (ProfilerStep#6) take more than 1.5 times the median of 0.100 ms" in finding.what
    assert finding.what.endswith("most of it is idle")
    (finding,) = judge(RULE, steps(*[(100_000, 0)] * 6, (300_000, 0)))
    assert finding.what.endswith("most of it is compute")


def test_silent_where_steps_agree(judge: Judge) -> None:
    assert judge(RULE, steps(*[(100_000, 0)] * 6, (140_000, 0))) == []


def test_abstains_with_few_steps_or_none(judge: Judge) -> None:
    verdict = judge(RULE, steps((1_000, 0), (9_000, 0)))
    assert isinstance(verdict, Abstain) and "2 steps are too few" in verdict.reason
    verdict = judge(RULE, TraceBuilder().launch("k", 1_000))
    assert isinstance(verdict, Abstain) and "no steps" in verdict.reason
