# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters that no optimizer updates are added up from step to step"""

from __future__ import annotations

from typing import Any

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.unused_gradients import RULE

FROZEN, HEAD = "/app/model.py:21 Frozen.forward", "/app/model.py:41 Head.forward"
OPTIM = "/v/site-packages/torch/optim"
ADD = "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
FILL = "vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
DGRAD, WGRAD = "sm90_xmma_dgrad_implicit_gemm", "sm90_xmma_wgrad_implicit_gemm"
LAYERS = 3
NORM = "/app/model.py:25 Frozen.forward"
CALL = [FROZEN, FROZEN, NORM]


class Program(TraceBuilder):
    """Steps; the counter of autograd goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.node = 0

    def forward(self, *lines: str) -> list[tuple[str, int]]:
        made = []
        for line in lines:
            made.append((line, self.node))
            self.node += 1
            self.launch("fprop", 5_000, stack=line, peek=self.node)
        return made

    def backward(
        self,
        graph: list[tuple[str, int]],
        adding: tuple[str, ...],
        input_too: bool = True,
        again: bool = False,
        split: int = 1,
    ) -> None:
        """Gradients of the input and the weight of each, input_too: of the first; what there is of the latter
        at `adding` is added; again: to what the weight got before in this pass, too.
        """
        for line, node in reversed(graph):
            how = {"thread": 2, "peek": self.node, "node": node, "node_name": "ConvolutionBackward0"}
            self.launch("workspace", 1_000, **how)
            if input_too or node != graph[0][1]:
                self.launch(DGRAD, 10_000, **how)
            for _ in range(split):
                self.launch(WGRAD, 20_000 // split, **how)
            self.launch("reduce_kernel", 3_000, **how)
            if again:
                self.launch(ADD, 1_000, **how)
            if line in adding:
                self.launch(ADD, 2_000, thread=2, peek=self.node, node=-1, node_name="AccumulateGrad")

    def update(self, line: int) -> None:
        self.launch("adam", 2_000, stack=f"/app/train.py:{line} main > {OPTIM}/adam.py:9 Adam.step")


def frozen(adding: tuple[str, ...] = (FROZEN,), fills: int = 0, zero_grad: bool = False) -> Program:
    """What a frozen network makes of a trained input is compared with something."""
    builder = Program()
    for _ in range(4):
        for _ in range(fills):
            builder.launch(FILL, 500, stack="/app/train.py:6 main")
        if zero_grad:
            builder.launch(
                "zero", 500, stack=f"/app/train.py:6 main > {OPTIM}/optimizer.py:9 Optimizer.zero_grad"
            )
        builder.backward(builder.forward(*[FROZEN] * LAYERS), adding)
        builder.update(9)
    return builder


def game(detached: bool) -> Program:
    """A head learns from what another network makes, and that network through the head."""
    builder = Program()
    for _ in range(3):
        made = builder.forward(FROZEN, FROZEN)
        judged = builder.forward(HEAD)
        builder.backward(judged if detached else made + judged, () if detached else (FROZEN,))
        builder.update(31)
        builder.backward(builder.forward(FROZEN, FROZEN, HEAD), (HEAD,))
        builder.update(32)
    return builder


def products(builder: Program) -> Program:
    """The same with kernels whose names do not say which gradient they compute."""
    of = {builder.string(DGRAD), builder.string(WGRAD)}
    for row in builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row["demangledName"] = builder.string("gemm") if row["demangledName"] in of else row["demangledName"]
    return builder


def test_fires_on_gradients_that_a_step_left(judge: Judge) -> None:
    (finding,) = judge(RULE, frozen())
    steps = 3  # nothing is known of what comes before the first step in the recording
    assert finding.cost_ns == steps * LAYERS * 25_000, (
        "the weight's and the bias's gradient, and the addition"
    )
    assert f"{steps * LAYERS} times a gradient was added" in finding.what and "(line 9)" in finding.what
    assert finding.place is not None and finding.place.line == 21
    assert "requires_grad_(False)" in finding.remedy


def test_of_matrix_products_half_are_for_weights(judge: Judge) -> None:
    builder = products(frozen())
    (finding,) = judge(RULE, builder)
    assert finding.saving is not None
    saved_ns = 0.5 * (10_000 + 20_000) + 2_000
    took = {10_000: 0.5, 20_000: 0.5, 2_000: 0.0}
    assert sorted(finding.saving.left.tolist()) == sorted([*took.values()] * 3 * LAYERS)
    assert f"{3 * LAYERS * saved_ns / 1e6:.3f} ms" in finding.what


def test_all_that_comes_after_the_used_parameters_is_for_nothing(judge: Judge) -> None:
    findings = judge(RULE, game(detached=False))
    of = {finding.what.split("(line ")[1][:2]: finding for finding in findings}
    assert of["31"].cost_ns == 2 * 2 * 36_000, "the whole backward of what is not updated"
    assert "detach()" in of["31"].remedy and of["31"].place.line == 21
    assert of["32"].cost_ns == 3 * 25_000, "of the head only its weights: the gradient goes on to the other"
    assert "requires_grad_(False)" in of["32"].remedy and of["32"].place.line == 41


def test_detached_only_the_weights_of_the_head_are_left(judge: Judge) -> None:
    (finding,) = judge(RULE, game(detached=True))
    assert "(line 32)" in finding.what and finding.cost_ns == 3 * 25_000


def test_silent_about_gradients_that_are_accumulated(judge: Judge) -> None:
    assert judge(RULE, frozen(adding=())) == []
    builder = Program()
    for _ in range(3):
        for part in range(4):
            builder.backward(builder.forward(*[FROZEN] * LAYERS), (FROZEN,) if part else ())
        builder.update(9)
    assert judge(RULE, builder) == [], "the first backward after a step stores new gradients"


@pytest.mark.parametrize("zeroed", [{"fills": LAYERS}, {"zero_grad": True}], ids=str)
def test_silent_about_gradients_that_are_filled_with_zeros(judge: Judge, zeroed: dict[str, int]) -> None:
    assert judge(RULE, frozen(**zeroed)) == []
    assert judge(RULE, frozen(fills=LAYERS - 1)) != [], "some other fill clears no gradients"


def test_abstains_without_backward(judge: Judge) -> None:
    verdict = judge(RULE, TraceBuilder().launch("k", 1000, stack=HEAD))
    assert isinstance(verdict, Abstain) and "no backward" in verdict.reason
    by_ranges = TraceBuilder(form="nsys")  # of nsys with --pytorch=autograd-nvtx
    by_ranges.launch("gemm", 1000, thread=2)
    by_ranges.range(
        "autograd::engine::evaluate_function: MmBackward0, seq = 2", 0, by_ranges.now_ns, thread=2
    )
    verdict = judge(RULE, by_ranges)
    assert isinstance(verdict, Abstain) and "node of autograd" in verdict.reason


def probe(trained_input: bool) -> Program:
    """Only the head is updated, of a network that was never frozen. The first layer has no gradient of its
    input, unless the input is trained, too.
    """
    builder = Program()
    for _ in range(4):
        made = builder.forward(*[FROZEN] * LAYERS, HEAD)
        builder.backward(made, (FROZEN,), input_too=trained_input)
        builder.update(9)
    return builder


def test_backward_of_a_network_that_only_a_head_is_trained_on(judge: Judge) -> None:
    (finding,) = judge(RULE, probe(trained_input=False))
    assert finding.cost_ns == 3 * (LAYERS * 36_000 - 10_000) and "no_grad()" in finding.remedy
    (finding,) = judge(RULE, probe(trained_input=True))
    assert finding.cost_ns == 3 * LAYERS * 25_000, "the gradient goes on to the input"


def perceptual(
    true: list[str], again: bool = True, input_too: bool = False, late: bool = False, split: int = 1
) -> Program:
    """A frozen network is called twice for a loss, and only the first input is trained. late: the call whose
    gradients are added is evaluated first. split: kernels for each gradient of a weight in it.
    """
    builder = Program()
    for _ in range(4):
        first, second = builder.forward(FROZEN, FROZEN, NORM), builder.forward(*true)
        if late:
            builder.backward(first, (FROZEN, NORM), again=again)
        builder.backward(second, (), input_too=input_too)
        if not late:
            builder.backward(first, (FROZEN, NORM), again=again, split=split)
        builder.update(9)
    return builder


@pytest.mark.parametrize(
    ("program", "second_ns"),
    [
        ({"true": CALL}, LAYERS * 34_000 - 10_000),
        ({"true": CALL * 2}, LAYERS * (23_000 + 34_000) - 10_000),
        ({"true": CALL, "input_too": True}, LAYERS * 23_000),
        ({"true": CALL, "input_too": True, "split": 2}, LAYERS * 23_000),
        ({"true": [FROZEN, HEAD, FROZEN, NORM]}, LAYERS * 23_000 - 3_000),
        ({"true": [FROZEN, NORM, FROZEN]}, 0),
        ({"true": CALL, "again": False}, 0),
        ({"true": CALL, "late": True}, 0),
    ],
    ids=["data", "thrice", "trained input", "split", "trained layer", "others", "not summed", "late"],
)
def test_another_call_of_the_same_weights(judge: Judge, program: dict[str, Any], second_ns: int) -> None:
    (finding,) = judge(RULE, perceptual(**program))
    sums_ns = LAYERS * 1_000 * program.get("again", True)
    assert finding.cost_ns == 3 * (LAYERS * 25_000 + sums_ns + second_ns)


@pytest.mark.parametrize(("trained", "halves", "nothing"), [(False, 6, 3 + 11), (True, 12, 3)])
def test_another_call_of_matrix_products(judge: Judge, trained: bool, halves: int, nothing: int) -> None:
    """Of a call whose input is trained, half of the products are needed."""
    (finding,) = judge(RULE, products(perceptual(CALL, input_too=trained)))
    assert finding.saving is not None
    assert sorted(finding.saving.left.tolist()) == [0.0] * 3 * nothing + [0.5] * 3 * halves
