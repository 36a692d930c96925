# SPDX-License-Identifier: Apache-2.0
"""An optimizer that goes through its parameters pass by pass"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.foreach_optimizer import RULE

OPTIM = "/v/site-packages/torch/optim"
STEPS, US = 5, 1_000
APPLY = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, at::native::"
MUL, SQRT = APPLY + "BinaryOpScalarFunctor<float, 1, 1, 0>>()", APPLY + "UnaryOpFunctor<float, 2, 1, 1>>()"
LERP = APPLY + "TernaryOpScalarFunctor<float, 2, 2, 0>>()"
ADDCMUL = APPLY + "PointwiseOpScalarFunctor<float, 3, 3, 0>>()"
ADAM = ((MUL, 2), (LERP, 3), (MUL, 2), (ADDCMUL, 4), (SQRT, 2), (MUL, 2), (MUL, 2), (ADDCMUL, 4))
"""the passes of AdamW, with the arrays that each reads and writes: 21"""


def program(
    passes: tuple[tuple[str, int], ...] = ADAM,
    function: str = "_multi_tensor_adam",
    stacks: bool = True,
    model_us: int = 300,
) -> TraceBuilder:
    """Each pass takes 10 us for an array, in two launches."""
    builder = TraceBuilder()
    for _ in range(STEPS):
        builder.launch("gemm", model_us * US, stack="/app/train.py:7 main" if stacks else ())
        for number, (name, arrays) in enumerate(passes):
            stack = (
                f"/app/train.py:9 main > {OPTIM}/adam.py:90 Adam.step > {OPTIM}/adam.py:{number} {function}"
            )
            for _ in range(2):
                builder.launch(name, 5 * arrays * US, stack=stack if stacks else ())
    return builder


def test_fires_for_passes_of_adam(judge: Judge) -> None:
    (finding,) = judge(RULE, program())
    assert finding.cost_ns == STEPS * 210 * US and finding.place.line == 9
    assert "in 8 passes, which read or write 21 arrays where a fused one needs 7" in finding.what
    assert finding.wins_frac == pytest.approx(2 / 3) and set(finding.saving.left) == {7 / 21}
    assert "fused=True" in finding.remedy


def test_counts_of_steps_are_no_pass(judge: Judge) -> None:
    builder = program()
    for _ in range(STEPS):
        stack = f"/app/train.py:9 main > {OPTIM}/adam.py:91 _multi_tensor_adam"
        builder.launch(MUL, 100, stack=stack)
    (finding,) = judge(RULE, builder)
    assert "in 8 passes, which read or write 21 arrays" in finding.what


def test_sgd_has_fewer_arrays(judge: Judge) -> None:
    add = APPLY + "BinaryOpListAlphaFunctor<float, 2, 2, 0>>()"
    (finding,) = judge(RULE, program(((MUL, 2), (add, 3), (add, 3)), "_multi_tensor_sgd"))
    assert "8 arrays where a fused one needs 5" in finding.what


@pytest.mark.parametrize(
    ("passes", "function"),
    [
        (((APPLY + "FusedAdamMathFunctor<float, 4, 0, false>>()", 7),), "_fused_adam"),
        (((MUL, 3),), "_multi_tensor_sgd"),  # one pass, without momentum
        (ADAM, "_multi_tensor_radam"),  # of which there is no fused one
    ],
)
def test_silent_where_one_pass_would_not_do(
    judge: Judge, passes: tuple[tuple[str, int], ...], function: str
) -> None:
    assert judge(RULE, program(passes, function)) == []


def test_silent_where_it_is_little(judge: Judge) -> None:
    assert judge(RULE, program(model_us=5_000)) == []


def test_abstains_without_stacks(judge: Judge) -> None:
    assert isinstance(judge(RULE, program(stacks=False)), Abstain)
