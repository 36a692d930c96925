# SPDX-License-Identifier: Apache-2.0
"""Attention in separate kernels"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.unfused_attention import RULE

GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_TNT"
SCALE = "void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<c10::BFloat16> >"
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>"
)
SOFTMAX_BWD = "void (anonymous namespace)::softmax_warp_backward<c10::BFloat16, c10::BFloat16, float, 10>"
LOG_SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, LogSoftMaxForwardEpilogue>"
LOG_WARP = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, true, false>(float *, int)"
)
TOP_K = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>"
MAIN = "/app/train.py:9 main > "


def attention(
    *between: tuple[str, int],
    function: str = "attend",
    last: str = "attend",
    ns: int = 100_000,
    times: int = 5,
) -> TraceBuilder:
    """A product at line 1, what is between at lines 2 and on, a product at line 20, and other work."""
    builder = TraceBuilder()
    for _ in range(times):
        builder.launch(GEMM, ns, stack=f"{MAIN}/app/model.py:1 {function}")
        for line, (name, took) in enumerate(between, 2):
            builder.launch(name, took, stack=f"{MAIN}/app/model.py:{line} {function}")
        builder.launch(GEMM, ns, stack=f"{MAIN}/app/model.py:20 {last}")
        builder.launch(GEMM, ns, stack=f"{MAIN}/app/model.py:30 forward")
    return builder


def test_fires_at_the_hottest_line_between_the_products(judge: Judge) -> None:
    (finding,) = judge(RULE, attention((SCALE, 30_000), (SCALE, 50_000), (SOFTMAX, 40_000)))
    assert finding.cost_ns == 5 * 120_000 and finding.events == 15 and finding.place.line == 3
    assert finding.what.startswith(
        "attend computes attention in separate kernels: 0.600 ms, 28.6 % of the GPU"
    )
    assert "scaled_dot_product_attention" in finding.remedy


def test_a_workspace_that_is_cleared_for_a_product_is_no_other_work(judge: Judge) -> None:
    """cuBLAS clears its workspace before a product in parts (nn.MultiheadAttention with need_weights)."""
    (finding,) = judge(RULE, attention((SCALE, 50_000), (SOFTMAX, 40_000), ("memset", 800)))
    assert finding.cost_ns == 5 * 90_800


def test_backward_of_its_lines_counts(judge: Judge) -> None:
    builder = TraceBuilder()
    stack = f"{MAIN}/app/model.py"
    builder.launch(GEMM, 100_000, stack=f"{stack}:1 attend", peek=1)
    builder.launch(SOFTMAX, 40_000, stack=f"{stack}:2 attend", peek=2)
    builder.launch(GEMM, 100_000, stack=f"{stack}:3 attend", peek=3)
    builder.launch(GEMM, 100_000, node=2, node_name="BmmBackward0", thread=2)
    builder.launch(SOFTMAX_BWD, 60_000, node=1, node_name="SoftmaxBackward0", thread=2)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 100_000 and finding.place.line == 2, finding
    assert "forward and backward" in finding.what


def test_a_mask_made_between_the_products_is_part_of_it(judge: Judge) -> None:
    """`scores.masked_fill(~torch.ones(...).tril(), -inf)`: masked_fill copies its input."""
    tril = "void at::native::triu_tril_kernel<bool, int, false, 8, false>"
    builder = TraceBuilder()
    for _ in range(5):
        builder.launch(GEMM, 100_000, stack=f"{MAIN}/app/model.py:1 attend")
        builder.launch(tril, 2_000, stack=f"{MAIN}/app/model.py:2 attend")
        builder.copy("DtoD", 20_000, stack=f"{MAIN}/app/model.py:3 attend")
        builder.launch(SOFTMAX, 40_000, stack=f"{MAIN}/app/model.py:4 attend")
        builder.launch(GEMM, 100_000, stack=f"{MAIN}/app/model.py:5 attend")
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 5 * 62_000 and finding.place.line == 4


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(attention((SCALE, 30_000)), id="no softmax"),
        pytest.param(attention((LOG_SOFTMAX, 40_000)), id="a loss"),
        pytest.param(attention((LOG_WARP, 40_000)), id="a loss of few classes"),
        pytest.param(attention((SOFTMAX, 40_000), (TOP_K, 10_000)), id="a router: top k follows"),
        pytest.param(attention((SOFTMAX, 40_000), last="head"), id="the next product is another function's"),
        pytest.param(attention((SOFTMAX, 2_000)), id="next to no time"),
        pytest.param(attention((SOFTMAX, 40_000), *[(SCALE, 5_000)] * 12), id="too much between"),
        pytest.param(attention((SOFTMAX, 40_000), ("my_kernel", 5_000)), id="something unknown between"),
    ],
)
def test_silent_where_it_is_no_attention(judge: Judge, program: TraceBuilder) -> None:
    assert judge(RULE, program) == ()


def test_abstains_where_names_tell_nothing(judge: Judge) -> None:
    builder = TraceBuilder()
    builder.launch("mine", 1_000_000, stack="/app/model.py:1 f")
    assert isinstance(judge(RULE, builder), Abstain)


def test_abstains_without_lines(judge: Judge) -> None:
    builder = TraceBuilder()
    for name in (GEMM, SOFTMAX, GEMM):
        builder.launch(name, 100_000)
    verdict = judge(RULE, builder)
    assert isinstance(verdict, Abstain) and "has a line of your code" in verdict.reason
