# SPDX-License-Identifier: Apache-2.0
"""Gradients of an input of frozen layers, which nothing uses"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules.unused_gradients import RULE

FILE, STEPS, NS = "/app/train.py", 10, 10_000
BLOCK, HEAD = f"{FILE}:21 Block.forward", f"{FILE}:41 Head.forward"
OPTIM = "/v/site-packages/torch/optim/adam.py:9 Adam.step"
Node = tuple[str, str, tuple[str, ...]]
"""line, name, and what it launches in backward"""
OF_HEAD: Node = (HEAD, "AddmmBackward0", ("gemm_nn", "gemm_nt", "at::native::reduce_kernel"))
FROZEN: Node = (BLOCK, "AddmmBackward0", ("gemm_nn",))
CONVOLUTION: Node = (BLOCK, "ConvolutionBackward0", ("sm90_xmma_dgrad_implicit_gemm",))
NORM: Node = (BLOCK, "NativeLayerNormBackward0", ("layer_norm_grad_input_kernel",))
ATTENTION: Node = (BLOCK, "ScaledDotProductFlashAttentionBackward0", ("flash_bwd",))
SCORES: Node = (BLOCK, "BmmBackward0", ("gemm_nn", "gemm_tn"))
PROMPT: Node = (BLOCK, "ExpandBackward0", ("at::native::reduce_kernel",))
TABLE: Node = (BLOCK, "EmbeddingBackward0", ("embedding_backward",))
FIRST: Node = (BLOCK, "AddmmBackward0", ("gemm_nt",))


def backward(builder: TraceBuilder, *nodes: Node) -> None:
    for number, (_, name, kernels) in enumerate(nodes):
        for kernel in kernels:
            builder.launch(kernel, NS, thread=2, node=len(nodes) - number, node_name=name, peek=100)


def training(
    *nodes: Node, text: str = "x = block(x)", optimizers: tuple[int, ...] = (9,), other: int = 0
) -> TraceBuilder:
    """nodes: of a backward, as it comes to them. other: steps in which it comes to the head alone."""
    builder = TraceBuilder().source(FILE, 21, text)
    for step in range(STEPS):
        for number, (line, _, _) in enumerate(reversed(nodes)):
            builder.launch("forward", NS, stack=line, peek=number + 2)
        backward(builder, *(nodes if step >= other else nodes[:1]))
        for line in optimizers:
            builder.launch("adam", NS, stack=f"{FILE}:{line} main > {OPTIM}")
    return builder


@pytest.mark.parametrize(
    "last", [NORM, ATTENTION, CONVOLUTION, FROZEN], ids=["norm", "attention", "convolution", "product"]
)
def test_fires_on_what_backward_does_behind_parameters(judge: Judge, last: Node) -> None:
    (finding,) = judge(RULE, training(OF_HEAD, FROZEN, FROZEN, FROZEN, last))
    assert finding.cost_ns == STEPS * 4 * NS and "of an input that nothing seems to use" in finding.what
    assert finding.place is not None and finding.place.line == 21
    assert finding.saving is not None and len(finding.saving.operations) == STEPS * 4


@pytest.mark.parametrize(
    "nodes",
    [
        (OF_HEAD, FROZEN, FROZEN, NORM),
        (FROZEN, FROZEN, FROZEN, NORM),
        (OF_HEAD, FROZEN, FROZEN, FROZEN, FIRST),
        (OF_HEAD, FROZEN, FROZEN, FROZEN, (BLOCK, "AddmmBackward0", ("gemm_nn", "gemm_other"))),
        (OF_HEAD, FROZEN, FROZEN, FROZEN, (BLOCK, "MulBackward0", ("vectorized_elementwise_kernel",))),
        (OF_HEAD, FROZEN, FROZEN, FROZEN, (NORM[0], NORM[1], (*NORM[2], "GammaBetaBackwardCUDAKernel"))),
        *((OF_HEAD, FROZEN, FROZEN, FROZEN, node, NORM) for node in (PROMPT, TABLE, FIRST)),
        (OF_HEAD, SCORES, SCORES, SCORES),
    ],
    ids=[
        "two",
        "no head",
        "first layer",
        "weight",
        "other",
        "affine",
        "prompt",
        "table",
        "other branch",
        "of no weights",
    ],
)
def test_silent_where_parameters_or_little_follow(judge: Judge, nodes: tuple[Node, ...]) -> None:
    assert judge(RULE, training(*nodes)) == []


def test_products_of_activations_are_of_no_weight(judge: Judge) -> None:
    (finding,) = judge(RULE, training(OF_HEAD, FROZEN, FROZEN, FROZEN, SCORES, NORM))
    assert finding.cost_ns == STEPS * 6 * NS


def test_silent_where_a_gradient_is_kept(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(STEPS):
        builder.launch("forward", NS, stack=BLOCK, peek=100)
        backward(builder, OF_HEAD, *[FROZEN] * 4)
        builder.launch("add", NS, thread=2, node=-1, node_name="AccumulateGrad", peek=100)
        builder.launch("layer_norm", NS, thread=2, node=0, node_name=NORM[1], peek=100)
        builder.launch("adam", NS, stack=f"{FILE}:9 main > {OPTIM}")
    assert judge(RULE, builder) == []


@pytest.mark.parametrize(
    "text", ["x = x + e * x.grad.sign()", "g, = torch.autograd.grad(y, x)", "grads = of(x)"]
)
def test_silent_where_a_line_speaks_of_gradients(judge: Judge, text: str) -> None:
    assert judge(RULE, training(OF_HEAD, FROZEN, FROZEN, FROZEN, NORM, text=text)) == []


@pytest.mark.parametrize("text", ["x = block(x.requires_grad_())", "optimizer.zero_grad()"])
def test_other_words_are_no_use(judge: Judge, text: str) -> None:
    assert len(judge(RULE, training(OF_HEAD, FROZEN, FROZEN, FROZEN, NORM, text=text))) == 1


def test_silent_about_two_optimizers_or_none(judge: Judge) -> None:
    nodes = (OF_HEAD, FROZEN, FROZEN, FROZEN, NORM)
    assert judge(RULE, training(*nodes, optimizers=(9, 10))) == []
    assert judge(RULE, training(*nodes, optimizers=())) == []


def test_one_pass_in_ten_may_end_before(judge: Judge) -> None:
    nodes = (OF_HEAD, FROZEN, FROZEN, FROZEN, NORM)
    (finding,) = judge(RULE, training(*nodes, other=1))
    assert finding.cost_ns == (STEPS - 1) * 4 * NS
    assert judge(RULE, training(*nodes, other=2)) == []


@pytest.mark.parametrize(("times", "found"), [(40, 0), (4, 1)])
def test_silent_about_little(judge: Judge, times: int, found: int) -> None:
    builder = training(OF_HEAD, FROZEN, FROZEN, FROZEN, NORM)
    builder.launch("other", times * STEPS * 4 * NS, stack=f"{FILE}:5 main")
    assert len(judge(RULE, builder)) == found
