# SPDX-License-Identifier: Apache-2.0
"""The same call with the same arguments at several lines of a function"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules.recompute import RULE

FILE, US, STEPS = "/app/train.py", 1_000, 4
MODULE = "/v/site-packages/torch/nn/modules/module.py:9 Module._call_impl"
TERMS = (
    "ratio = (chance(self.policy(board), moves) - then).exp()",
    "spread = surprise(self.policy(board))",
    "moved = apart(before, self.policy(board))",
)


def program(
    lines: tuple[str, ...] = TERMS,
    kernels: tuple[tuple[str, ...], ...] = ((),) * 3,
    callee: str = f"{MODULE} > {FILE}:31 Policy.forward",
    between: str = "",
    in_turn: bool = False,
    backward_between: bool = False,
    helpers: tuple[str, ...] = ("chance", "surprise", "apart"),
) -> TraceBuilder:
    """A loss that asks a network at each of the lines, and trains through each: 10 us and 20 us. kernels:
    what else each launches. between: what comes behind the first one. in_turn: each step has one of them.
    """
    builder, node = TraceBuilder(), 0
    for number, text in enumerate(lines, 11):
        builder.source(FILE, number, text)
    for step in range(STEPS):
        began, nodes = builder.now_ns, []
        for number, others, helper in zip(range(11, 11 + len(lines)), kernels, helpers, strict=False):
            if in_turn and number - 11 != step % len(lines):
                continue
            stack = f"{FILE}:5 main > {FILE}:{number} Trainer.loss"
            for name in ("gemm", *others):
                node += 1
                builder.launch(name, 10 * US, stack=f"{stack} > {callee}", peek=node)
                nodes.append(node - 1)
            node += 1
            builder.launch("softmax", US, stack=f"{stack} > {FILE}:41 {helper}", peek=node)
            if between and number == 11:
                builder.launch("adam", US, stack=f"{FILE}:5 main > {between}")
            if backward_between and number == 11:
                builder.launch("gemm_back", US, thread=2, node=0, node_name="MmBackward0", peek=node)
        for each in reversed(nodes):
            builder.launch("gemm_back", 20 * US, thread=2, node=each, node_name="MmBackward0", peek=node)
        builder.range(f"ProfilerStep#{step}", began, builder.now_ns - 1)
    return builder


def test_fires_on_a_module_that_is_asked_for_every_term(judge: Judge) -> None:
    (finding,) = judge(RULE, program())
    assert finding.cost_ns == STEPS * 2 * 30 * US, "forward and backward of two of them"
    assert "self.policy(board) is computed at 3 lines of one function" in finding.what
    assert finding.place.line in (12, 13) and finding.severity_at_most == "medium"


def test_fires_on_a_function(judge: Judge) -> None:
    lines = ("a = encode(x, mask=None)", "b = encode(x, mask=None)")
    (finding,) = judge(RULE, program(lines, callee=f"{FILE}:31 encode"))
    assert finding.cost_ns == STEPS * 30 * US


def test_the_first_call_may_cast_weights(judge: Judge) -> None:
    """autocast keeps them."""
    (finding,) = judge(RULE, program(kernels=(("bfloat16_copy_kernel",), (), ())))
    assert finding.cost_ns == STEPS * 2 * 30 * US, "the one that took longest stays"


@pytest.mark.parametrize(
    "lines",
    [
        ("a = self.policy(board)", "b = self.policy(other)"),
        ("x = self.policy(x)", "x = self.policy(x)"),
        ("a, x = self.policy(x), 1", "b = self.policy(x)"),
        ("a = self.policy()", "b = self.policy()"),
        ("a = self.policy(x) + self.value(x)", "b = self.policy(y) + self.value(x)"),
        ("a = torch.cat(parts, 1)", "b = torch.cat(parts, 1)"),
        ("a = self.policy(", "b = self.policy("),
    ],
)
def test_silent_where_it_may_be_another_call(judge: Judge, lines: tuple[str, ...]) -> None:
    assert judge(RULE, program(lines)) == ()


def test_silent_where_a_name_changes_between(judge: Judge) -> None:
    assert judge(RULE, program((TERMS[0], "board = turned(board)", TERMS[1]))) == ()


def test_silent_where_only_a_function_around_is_the_same(judge: Judge) -> None:
    lines = ("a = chance(self.policy(board), moves)", "b = chance(self.policy(board), others)")
    builder = program(lines, callee=f"{FILE}:31 chance", helpers=("other", "other"))
    assert judge(RULE, builder) == ()


def test_silent_where_an_optimizer_steps_between(judge: Judge) -> None:
    step = f"{FILE}:15 main > /v/site-packages/torch/optim/adam.py:9 Adam.step"
    assert judge(RULE, program(TERMS[:2], between=step)) == ()
    assert len(judge(RULE, program(TERMS[:2], between=f"{FILE}:15 f"))) == 1


@pytest.mark.parametrize(
    "kernels", [(("gemm_2",), ()), (("dropout",), ("dropout",))], ids=["other", "random"]
)
def test_silent_where_the_result_differs(judge: Judge, kernels: tuple[tuple[str, ...], ...]) -> None:
    assert judge(RULE, program(TERMS[:2], kernels)) == ()


def test_silent_where_each_step_takes_one_of_the_lines(judge: Judge) -> None:
    assert judge(RULE, program(TERMS[:2], in_turn=True)) == ()
