# SPDX-License-Identifier: Apache-2.0
"""A line that dominates"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.dominant_line import RULE


def lines(count: int, stack: str = "/app/model.py:{} f") -> TraceBuilder:
    """`count` kernels of line 7, forward, one backward of it, and twenty of other lines."""
    builder = TraceBuilder()
    for i in range(count):
        builder.launch("add", 1_000, stack=stack.format(7), peek=i + 1)
    for i in range(20):
        builder.launch("gemm", 1_000, stack=stack.format(100 + i), peek=count + i + 1)
    return builder.launch("add_t", 3_000, node=0, node_name="AddBackward0", thread=2, peek=0)


def test_fires_on_the_sum_of_short_kernels_forward_and_backward(judge: Judge) -> None:
    (finding,) = judge(RULE, lines(17))
    assert finding.cost_ns == 20_000 and finding.place.line == 7 and finding.events == 18
    assert "50.0 % of the GPU time: 18 operations, 0.017 ms forward, 0.003 ms backward" in finding.what
    assert str(finding.evidence[0]) == "operations[37]"


def test_products_on_tensor_cores_are_no_cost_of_the_line(judge: Judge) -> None:
    """The head of a model is one large product; a sort at another line can be replaced."""
    builder = TraceBuilder()
    for _ in range(20):
        builder.launch("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_TNT", 60_000, stack="/app/model.py:7 f")
        builder.launch("flash_fwd_kernel", 5_000, stack="/app/model.py:7 f")
        builder.launch("add", 1_000, stack="/app/model.py:7 f")
        builder.launch("radixSortKVInPlace", 40_000, stack="/app/model.py:9 f")
    head, sort = judge(RULE, builder)
    assert (head.place.line, head.cost_ns) == (7, 20 * 1_000) and "62.3 %" in head.what
    assert (sort.place.line, sort.cost_ns) == (9, 20 * 40_000)


def test_silent_where_none_leads(judge: Judge) -> None:
    assert judge(RULE, lines(2)) == ()


def test_abstains_without_lines_or_with_few_operations(judge: Judge) -> None:
    verdict = judge(RULE, lines(17, stack=""))
    assert isinstance(verdict, Abstain) and "too little to say that no line dominates" in verdict.reason
    verdict = judge(RULE, TraceBuilder().launch("k", 1000, stack="/app/a.py:1 f"))
    assert isinstance(verdict, Abstain) and "too few" in verdict.reason
