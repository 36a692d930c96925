# SPDX-License-Identifier: Apache-2.0
"""Waiting for the DataLoader"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.dataloader import RULE

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def steps(load_ns: int, name: str = NEXT) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(3):
        began = builder.now_ns
        builder.gap(load_ns).range(name, began, builder.now_ns).launch("k", 100_000).gap(95_000)
    return builder


def test_fires_with_the_idle_time_inside(judge: Judge) -> None:
    (finding,) = judge(RULE, steps(50_000))
    # The first call is before the GPU's first operation, and each of the others begins 3 µs before its
    # kernel is done.
    assert finding.cost_ns == 2 * 47_000 and finding.events == 3 and finding.place is None
    assert "waited 0.150 ms for its DataLoader in 3 calls" in finding.what
    assert finding.evidence[0].table == "ranges"


def test_silent_where_data_is_there_in_time_or_operators_show_no_loader(judge: Judge) -> None:
    assert judge(RULE, steps(4_000)) == []
    assert judge(RULE, steps(50_000, "aten::mm, seq = 4")) == ()


def test_abstains_without_operator_ranges(judge: Judge) -> None:
    verdict = judge(RULE, steps(50_000, "my range"))
    assert isinstance(verdict, Abstain) and "torch.profiler" in verdict.to_record
