# SPDX-License-Identifier: Apache-2.0
"""Many tiny kernels of one line"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.tiny_kernels import RULE

LINE = "/app/model.py:14 Net.forward"


def launches(count: int, gpu_ns: int, stack: str = LINE) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(count):
        builder.launch("add", gpu_ns, stack=stack, call_ns=4_000)
    return builder


def test_fires_on_a_loop_of_tiny_kernels(judge: Judge) -> None:
    (finding,) = judge(RULE, launches(100, 2_000))
    assert finding.events == 100 and finding.place.line == 14
    assert finding.cost_ns == 100 * 2_000 + 99 * 3_000, "they ran, and the GPU waited for the next of them"
    assert "0.297 ms before them" in finding.what


def test_silent_below_either_threshold(judge: Judge) -> None:
    assert judge(RULE, launches(99, 2_000)) == ()
    assert judge(RULE, launches(100, 10_000)) == ()


def test_abstains_without_lines(judge: Judge) -> None:
    verdict = judge(RULE, launches(100, 2_000, stack=""))
    assert isinstance(verdict, Abstain) and "0.0 % of the GPU time has a line" in verdict.reason


def test_a_graph_is_one_launch(judge: Judge) -> None:
    builder = TraceBuilder()
    for graph in range(20):
        for kernel in range(40):
            how = {"correlation": 5_000 + graph, "recorded": not kernel}
            builder.launch("add", 2_000, stack=LINE, call_ns=90_000, **how)
    assert judge(RULE, builder) == (), "800 kernels in 20 launches are replayed already"


def test_launches_that_load_code_are_no_cost_of_launching(judge: Judge) -> None:
    """808 ms were claimed for six launches that loaded modules."""
    builder = TraceBuilder()
    for i in range(200):
        builder.launch("add", 2_000, stack=LINE, call_ns=4_000 if i % 40 else 130_000_000)
        builder.gap(0 if i % 40 else 130_000_000)
    assert judge(RULE, builder) == ()
    (finding,) = judge(RULE, launches(200, 2_000).launch("gemm", 9_000, stack=LINE, call_ns=130_000_000))
    assert "0.797 ms to launch them" in finding.what and "backward" not in finding.what
