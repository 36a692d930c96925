# SPDX-License-Identifier: Apache-2.0
"""Rows added by index more slowly than they are read"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.slow_scatter import RULE

ADD = "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long const*, long const*, float*)"
ADD_AT_ONCE = "void at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true>(Params)"
READ = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)"
SOURCE, TARGET = "/app/graph.py:56 Convolution.forward", "/app/graph.py:57 Convolution.forward"


def steps(picks: tuple[str, int, str, int], adds: tuple[str, int, str, int], stack: str = "") -> TraceBuilder:
    """`x[source]`, whose backward adds, and `index_add(target)`, whose backward reads: each with its kernel
    and time, forward and backward.
    """
    builder = TraceBuilder()
    for step in range(5):
        number = 2 * step
        builder.launch(picks[0], picks[1], stack=stack or SOURCE, peek=number + 1)
        builder.launch(adds[0], adds[1], stack=stack or TARGET, peek=number + 2)
        builder.launch("gemm", 100_000, stack="/app/graph.py:60 main", peek=number + 2)
        how = {"thread": 2, "peek": 0}
        builder.launch(adds[2], adds[3], node=number + 1, node_name="IndexAddBackward0", **how)
        builder.launch(picks[2], picks[3], node=number, node_name="IndexSelectBackward0", **how)
    return builder


def test_fires_for_both_phases_with_what_reading_does_not_take(judge: Judge) -> None:
    (finding,) = judge(RULE, steps((READ, 30_000, ADD, 430_000), (ADD, 420_000, READ, 30_000)))
    assert finding.cost_ns == 5 * (400_000 + 390_000) and finding.events == 10
    assert finding.place.line == 56, "the line whose backward costs most"
    assert "10 kernels add rows by index at 2 lines of one function: 4.250 ms, 84.2 %" in finding.what
    assert "reading the same rows takes 0.300 ms" in finding.what
    assert "deterministic" in finding.remedy and "index_select" in finding.remedy


def test_one_slow_line_is_charged_alone(judge: Judge) -> None:
    (finding,) = judge(RULE, steps((READ, 30_000, ADD, 430_000), (ADD_AT_ONCE, 40_000, READ, 30_000)))
    assert finding.cost_ns == 5 * 400_000 and "at 2 lines" not in finding.what


def test_silent_where_adding_takes_about_as_long(judge: Judge) -> None:
    quick = (ADD_AT_ONCE, 85_000, READ, 30_000)
    assert judge(RULE, steps((READ, 30_000, ADD_AT_ONCE, 85_000), quick)) == ()
    slow = (ADD_AT_ONCE, 90_000, READ, 30_000)
    assert judge(RULE, steps((READ, 30_000, ADD_AT_ONCE, 85_000), slow))[0].cost_ns == 5 * 60_000


def test_silent_where_nothing_reads_the_same_rows(judge: Judge) -> None:
    """How long it should take is not known."""
    assert judge(RULE, steps(("gemm", 30_000, ADD, 430_000), (ADD, 420_000, "gemm", 30_000))) == ()
    in_one_phase = TraceBuilder()
    for _ in range(5):
        in_one_phase.launch(READ, 30_000, stack=SOURCE).launch(ADD, 400_000, stack=SOURCE)
    assert judge(RULE, in_one_phase) == ()


def test_silent_where_little_time_is_lost(judge: Judge) -> None:
    assert judge(RULE, steps((READ, 500, ADD, 1_600), (ADD, 1_600, READ, 500))) == ()


def test_abstains_without_lines(judge: Judge) -> None:
    builder = TraceBuilder().launch(READ, 30_000).launch(ADD, 430_000)
    verdict = judge(RULE, builder)
    assert isinstance(verdict, Abstain) and "adds rows slowly" in verdict.reason
