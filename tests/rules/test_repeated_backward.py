# SPDX-License-Identifier: Apache-2.0
"""Backward that goes through the same graph for each of several losses"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.repeated_backward import RULE

MODEL = "/app/model.py:21 Net.forward"
CALLS = "/app/train.py:9 main > /v/site-packages/torch/_tensor.py:630 Tensor.backward > "
ENGINE = CALLS + "/v/site-packages/torch/autograd/graph.py:829 _engine_run_backward"
LAYERS = 4


def forward(builder: TraceBuilder) -> None:
    for layer in range(LAYERS):
        builder.launch("gemm", 5_000, stack=MODEL, peek=layer + 1)


def backward(builder: TraceBuilder, *, first_node: int = 0, makes_a_graph: bool = False) -> None:
    builder.launch("ones", 1_000, stack=ENGINE, peek=LAYERS)
    for layer in reversed(range(LAYERS)):
        peek = 100 + LAYERS - layer if makes_a_graph else 100
        how = {"thread": 2, "peek": peek, "node": first_node + layer, "node_name": "MmBackward0"}
        builder.launch("gemm_input", 10_000, **how)
        builder.launch("gemm_weight", 10_000, **how)
        builder.launch("add", 1_000, thread=2, peek=peek, node=-1, node_name="AccumulateGrad")


def step(losses: int, **how: bool) -> TraceBuilder:
    builder = TraceBuilder()
    forward(builder)
    for _ in range(losses):
        backward(builder, **how)
    return builder


def test_fires_on_passes_through_the_same_nodes(judge: Judge) -> None:
    (finding,) = judge(RULE, step(3))
    assert finding.cost_ns == 2 * LAYERS * 21_000, (
        "the first pass is needed, the gradients are added twice more"
    )
    assert "3.0 times" in finding.what and finding.events == 2 * 3 * LAYERS
    assert finding.place is not None and finding.place.line == 9, "the line that calls backward()"


def test_silent_about_one_pass_for_each_graph(judge: Judge) -> None:
    assert judge(RULE, step(1)) == ()
    builder = TraceBuilder()
    for batch in range(3):  # each has a graph of its own
        forward(builder)
        backward(builder, first_node=LAYERS * batch)
    assert judge(RULE, builder) == ()


def test_silent_about_passes_that_are_differentiated_again(judge: Judge) -> None:
    assert judge(RULE, step(3, makes_a_graph=True)) == ()
    builder = step(1, makes_a_graph=True)
    backward(builder)
    assert judge(RULE, builder) == (), "the one pass that records nothing is no repetition"


@pytest.mark.parametrize("losses", [2, 5])
def test_passes_end_where_a_node_comes_again_or_forward_goes_on(judge: Judge, losses: int) -> None:
    builder = step(losses - 1)
    forward(builder)
    backward(builder)
    (finding,) = judge(RULE, builder)
    assert f"{losses}.0 times" in finding.what


def test_nodes_of_two_threads_of_forward_are_not_the_same(judge: Judge) -> None:
    builder = TraceBuilder()
    for thread in (1, 3):
        for node in (0, 1):
            builder.launch("gemm", 5_000, stack=MODEL, peek=node + 1, thread=thread)
    for thread in (1, 3):
        for node in (1, 0):
            how = {"thread": 2, "node": node, "node_thread": thread, "node_name": "MmBackward0"}
            builder.launch("gemm_input", 10_000, **how)
    assert judge(RULE, builder) == ()


def test_abstains_without_backward(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("k", 1000, stack=MODEL))
    assert isinstance(verdict, Abstain) and "no backward" in verdict.reason
    by_ranges = TraceBuilder(form="nsys")  # of nsys with --pytorch=autograd-nvtx
    by_ranges.launch("gemm", 1000, thread=2)
    by_ranges.range(
        "autograd::engine::evaluate_function: MmBackward0, seq = 2", 0, by_ranges.now_ns, thread=2
    )
    verdict = judge(RULE, by_ranges)
    assert isinstance(verdict, Abstain) and "node of autograd" in verdict.reason
