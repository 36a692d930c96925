# SPDX-License-Identifier: Apache-2.0
"""Gradients that are filled with zeros, and added to"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.zeroed_gradients import RULE

ADD = "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
FILL = "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
ZERO_GRAD = "/app/train.py:6 main > /v/site-packages/torch/optim/optimizer.py:9 Optimizer.zero_grad"
STEPS, LAYERS, US = 4, 3, 1_000


def program(
    fill: str = FILL,
    stack: str = ZERO_GRAD,
    parts: int = 1,
    adds: bool = True,
    text: str = "optimizer.zero_grad(set_to_none=False)",
    add_node: str = "AccumulateGrad",
) -> TraceBuilder:
    """Each step fills, and goes backward once for each part of the batch."""
    builder, node = TraceBuilder().source("/app/train.py", 6, text), 0
    for _ in range(STEPS):
        for _ in range(LAYERS):
            if fill == "memset":
                builder.memset(4 * US, stack=stack)
            elif fill:
                builder.launch(fill, 4 * US, stack=stack)
        for _ in range(parts):
            first = node
            for _ in range(LAYERS):
                node += 1
                builder.launch("gemm", 20 * US, stack="/app/train.py:7 main", peek=node)
            for number in reversed(range(first, node)):
                builder.launch("gemm", 40 * US, thread=2, peek=node, node=number, node_name="MmBackward0")
                if adds:
                    builder.launch(ADD, 8 * US, thread=2, peek=node, node=-1, node_name=add_node)
        builder.launch("sgd", 10 * US, stack="/app/train.py:9 main")
    return builder


@pytest.mark.parametrize("fill", [FILL, "memset", "multi_tensor_apply_kernel<ZeroFunctor<float>>"])
def test_fires_on_zeros_and_what_is_added_to_them(judge: Judge, fill: str) -> None:
    (finding,) = judge(RULE, program(fill))
    assert finding.cost_ns == STEPS * LAYERS * 12 * US
    assert finding.place is not None and finding.place.line == 6
    assert f"{STEPS * LAYERS} times what backward computes" in finding.what
    assert set(finding.saving.left) == {0} and "set_to_none=True" in finding.remedy


@pytest.mark.parametrize("text", ["p.grad.zero_()", "    p.grad.data.zero_()", "p.grad.detach_().zero_()"])
def test_fires_on_lines_that_do_the_same(judge: Judge, text: str) -> None:
    (finding,) = judge(RULE, program(stack="/app/train.py:6 main", text=text))
    assert finding.cost_ns == STEPS * LAYERS * 12 * US


def test_additions_of_other_parts_of_a_batch_stay(judge: Judge) -> None:
    (finding,) = judge(RULE, program(parts=2))
    assert finding.cost_ns == STEPS * LAYERS * 12 * US, "the second part's are needed"


def test_what_comes_before_the_first_zeros_may_be_added_to_something(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(2):
        builder.launch("gemm", 20 * US, stack="/app/train.py:7 main", peek=1)
        builder.launch(ADD, 8 * US, thread=2, peek=1, node=-1, node_name="AccumulateGrad")
    builder.launch("gemm", 20 * US, stack="/app/train.py:7 main", peek=1)
    builder.launch("gemm", 40 * US, thread=2, peek=1, node=0, node_name="MmBackward0")
    assert judge(RULE, builder.launch(FILL, 4 * US, stack=ZERO_GRAD)) == ()


def test_silent_where_nothing_is_filled_or_added(judge: Judge) -> None:
    assert judge(RULE, program(fill="")) == ()
    assert judge(RULE, program(adds=False)) == ()
    assert judge(RULE, program(add_node="AddBackward0")) == ()
    assert judge(RULE, program(stack="/app/train.py:6 main", text="total.zero_()")) == ()


def test_silent_where_it_is_little(judge: Judge) -> None:
    assert judge(RULE, program().launch("gemm", 100_000 * US, stack="/app/train.py:8 main")) == ()


def test_abstains_without_backward(judge: Judge) -> None:
    assert isinstance(judge(RULE, TraceBuilder().launch(FILL, US, stack=ZERO_GRAD)), Abstain)
