# SPDX-License-Identifier: Apache-2.0
"""Long gaps of a GPU"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.gpu_gaps import RULE
from profiling_lab.trace.columns import OverheadKind

MS = 1_000_000


def gaps(*lengths_ns: int) -> TraceBuilder:
    builder, at = TraceBuilder(), 2 * MS
    builder.launch("k", 10_000, start_ns=at)
    for line, length in enumerate(lengths_ns, 1):
        at += 10_000 + length
        builder.launch("k", 10_000, start_ns=at, stack=f"/app/train.py:{line} step")
    return builder


def test_fires_for_long_gaps_and_names_the_line_that_ended_the_longest(judge: Judge) -> None:
    (finding,) = judge(RULE, gaps(2 * MS, 5 * MS, MS // 2))
    assert finding.cost_ns == 7 * MS and finding.events == 2 and finding.place.line == 2
    assert "was idle 2 times for 1.000 ms or more, 7.000 ms in total" in finding.what
    assert [event.row for event in finding.evidence] == [2, 1], "the longest first"


def test_time_of_the_profiler_is_no_gap(judge: Judge) -> None:
    builder = gaps(2 * MS, 5 * MS)
    builder.row(
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        start=2 * MS + 10_000,
        end=3 * MS + 210_000,
        globalTid=builder.tid(1),
        overheadType=OverheadKind.BUFFER_FLUSH,
    )
    (finding,) = judge(RULE, builder)
    assert finding.events == 1 and finding.cost_ns == 5 * MS


def test_copies_are_work(judge: Judge) -> None:
    builder = gaps(5 * MS)
    builder.copy("HtoD", 5 * MS - 20_000, start_ns=2 * MS + 20_000)
    assert judge(RULE, builder) == []


def test_silent_where_gaps_are_short(judge: Judge) -> None:
    assert judge(RULE, gaps(*[MS // 2] * 20)) == []


def test_abstains_where_there_is_no_gap_to_measure(judge: Judge) -> None:
    assert isinstance(judge(RULE, gaps()), Abstain)
