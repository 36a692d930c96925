# SPDX-License-Identifier: Apache-2.0
"""Runs of short kernels"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.short_runs import RULE


def layer(short: int, gpu_ns: int = 2_000) -> TraceBuilder:
    """Twice: one long kernel, and then short ones of many lines, each waiting for its launch."""
    builder = TraceBuilder()
    for _ in range(2):
        builder.launch("gemm", 100_000, stack="/app/model.py:1 f").gap(110_000)
        for i in range(short):
            builder.launch(f"k{i}", gpu_ns, stack=f"/app/model.py:{2 + i % 4} f")
    return builder


def test_fires_across_lines_with_the_idle_time_inside(judge: Judge) -> None:
    (finding,) = judge(RULE, layer(40))
    assert finding.cost_ns == 2 * 39 * 3_000 and finding.events == 80 and finding.place is not None
    assert "2 runs of 40 short kernels each" in finding.what and "graph" in finding.remedy


def test_silent_where_runs_are_short_or_kernels_long(judge: Judge) -> None:
    assert judge(RULE, layer(15)) == []
    assert judge(RULE, layer(40, gpu_ns=50_000)) == []


def test_silent_where_the_gpu_never_waits(judge: Judge) -> None:
    assert judge(RULE, layer(40, gpu_ns=6_000)) == [], "launched every 5 us, they queue"


def test_abstains_with_a_handful_of_kernels(judge: Judge) -> None:
    assert isinstance(judge(RULE, layer(5)), Abstain)


def test_a_long_gap_ends_a_run_and_a_graph_is_none(judge: Judge) -> None:
    """611 ms were claimed, of which one gap was 546."""
    builder = TraceBuilder()
    for i in range(60):
        builder.launch("add", 2_000)
        if i == 30:
            builder.gap(3_000_000)
    (finding,) = judge(RULE, builder)
    assert finding.what.startswith("2 runs of 30 short kernels") and finding.cost_ns == 58 * 3_000
    graphs = TraceBuilder()
    for graph in range(10):
        for kernel in range(30):
            graphs.launch("add", 2_000, correlation=5_000 + graph, recorded=not kernel)
    assert judge(RULE, graphs) == []
