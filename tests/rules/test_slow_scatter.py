# SPDX-License-Identifier: Apache-2.0
"""Rows added by index more slowly than they are read"""

from __future__ import annotations

import pytest
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


SORT = "void cub::radix_sort::DeviceRadixSortOnesweepKernel<cub::policy_hub<long, long>, true, long>(long*)"
ARANGE = "void elementwise_kernel_with_index<int, at::native::arange_cuda_out>(long, long)"


def put(builder: TraceBuilder, line: int, add_ns: int, sort_ns: int, of: str = "density") -> TraceBuilder:
    """`index_put_(accumulate=True)`: three passes of a sort, and the addition."""
    stack = f"/app/grid.py:{line} {of}"
    builder.launch(SORT, 1_000_000, stack=stack).launch(
        ARANGE, 40_000, stack=stack
    )  # a sort of the line's own
    for pass_ns in (sort_ns, 2 * sort_ns, sort_ns):
        builder.launch(SORT, pass_ns, stack=stack).memset(1_000, stack=stack)
    return builder.launch(ADD, add_ns, stack=stack)


def test_fires_for_indices_that_are_sorted_to_be_added_at(judge: Judge) -> None:
    """Without anything to compare with, less one pass over the same indices."""
    builder = TraceBuilder()
    for _ in range(5):
        put(put(builder, 7, 500_000, 50_000), 9, 300_000, 40_000)
    (finding,) = judge(RULE, builder)
    assert (finding.place.line, finding.events) == (7, 5 * 8)
    total_ns, pass_ns = 5 * (700_000 + 460_000), 5 * (100_000 + 80_000)
    assert finding.cost_ns == pytest.approx(total_ns - pass_ns, abs=100)
    assert finding.saving.left == pytest.approx([pass_ns / total_ns] * 40)
    assert "10 times indices are sorted to add at them: 5.800 ms" in finding.what
    assert "index_add_" in finding.remedy


def test_sorts_of_other_lines_and_streams_are_not_those_of_an_addition(judge: Judge) -> None:
    builder = TraceBuilder()
    builder.launch(SORT, 400_000, stack="/app/grid.py:7 density", stream=5)
    for _ in range(5):
        builder.launch(ADD, 400_000, stack="/app/grid.py:7 density")
        builder.launch(SORT, 400_000, stack="/app/grid.py:6 density")
    assert judge(RULE, builder) == (), "what an addition without a sort should take is not known"


def test_what_can_be_compared_with_reading_is_charged_once(judge: Judge) -> None:
    builder = TraceBuilder()
    for number in range(5):
        builder.launch(READ, 30_000, stack=SOURCE, peek=number + 1)
        how = {"thread": 2, "peek": 0, "node": number, "node_name": "IndexBackward0"}
        builder.launch(SORT, 50_000, **how).launch(ADD, 430_000, **how)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 5 * 400_000 and "where reading" in finding.what


def test_silent_where_sorting_to_add_takes_little(judge: Judge) -> None:
    builder = put(TraceBuilder(), 7, 500_000, 50_000).launch("gemm", 30_000_000, stack=SOURCE)
    assert judge(RULE, builder) == ()


def test_silent_where_little_time_is_lost(judge: Judge) -> None:
    assert judge(RULE, steps((READ, 500, ADD, 1_600), (ADD, 1_600, READ, 500))) == ()


def test_abstains_without_lines(judge: Judge) -> None:
    builder = TraceBuilder().launch(READ, 30_000).launch(ADD, 430_000)
    verdict = judge(RULE, builder)
    assert isinstance(verdict, Abstain) and "adds rows slowly" in verdict.reason
