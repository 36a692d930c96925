# SPDX-License-Identifier: Apache-2.0
"""A full launch queue"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.queue_full import RULE
from profiling_lab.trace.columns import OverheadKind


def behind(count: int, slow_calls: int, **how: object) -> TraceBuilder:
    """The GPU takes 20 us for what the host launches every 5; the last calls wait for room."""
    builder = TraceBuilder()
    for _ in range(count):
        builder.launch("k", 20_000, stack="/app/train.py:9 step", **how)
    for i, row in enumerate(builder.rows.get("CUPTI_ACTIVITY_KIND_RUNTIME", [])[-slow_calls or count :]):
        row["start"] += i * 2_000_000
        row["end"] = row["start"] + 2_000_000
    return builder


def noted(builder: TraceBuilder, length_ns: int) -> TraceBuilder:
    return builder.row(
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        start=1_100_000,
        end=1_100_000 + length_ns,
        globalTid=builder.tid(1),
        overheadType=OverheadKind.COMMAND_BUFFER_FULL,
    )


def test_fires_where_the_driver_says_so(judge: Judge) -> None:
    (finding,) = judge(RULE, noted(behind(50, 3), 400_000))
    assert (
        "waited 0.400 ms" in finding.what
        and finding.cost_ns == 0
        and finding.events == 3
        and finding.confidence == "high"
    )
    assert "as recorded by the driver: the GPU is the bottleneck" in finding.what


def test_fires_where_a_thousand_launches_wait(judge: Judge) -> None:
    (finding,) = judge(RULE, behind(1_500, 5))
    assert "waited 10.000 ms" in finding.what and finding.confidence == "medium"


def test_silent_where_launches_are_quick_or_few_wait(judge: Judge) -> None:
    assert judge(RULE, behind(1_500, 0)) == []
    assert judge(RULE, behind(50, 5)) == [], "long calls, but 40 launches are no full queue"


def test_abstains_where_the_launches_are_unknown(judge: Judge) -> None:
    verdict = judge(RULE, behind(50, 0, recorded=False))
    assert isinstance(verdict, Abstain) and verdict.to_record


def test_a_graph_waits_once_for_all_its_kernels(judge: Judge) -> None:
    """2,152 ms were claimed, 949.8 % of the recording, where all launches took 1.4 ms."""
    builder = TraceBuilder()
    for graph in range(1_500):
        builder.launch("k", 2_000, correlation=5_000 + graph, api="cudaGraphLaunch_v10000", call_ns=110_000)
        for _ in range(9):
            builder.launch("k", 2_000, correlation=5_000 + graph, recorded=False)
        builder.gap(100_000)
    builder.launch("k", 5_000_000_000)
    assert judge(RULE, builder) == [], "1,500 calls of 110 µs are 3 % of the recording, not 30"
