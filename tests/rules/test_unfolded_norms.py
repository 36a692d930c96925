# SPDX-License-Identifier: Apache-2.0
"""Batch norms that are computed for themselves, though nothing is trained"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.unfolded_norms import RULE

US = 1_000
NORM = "void at::native::batch_norm_transform_input_channels_last_kernel<c10::BFloat16, float>()"
INVERSE = "void vectorized_elementwise_kernel<4, batch_norm_calc_invstd()>"
BIAS = "void at::native::elementwise_kernel<128, 4, at::native::CUDAFunctor_add<c10::BFloat16>>()"
LINEAR, CONVOLUTION = "nvjet_sm90_tst_bias_TNN", "sm90_xmma_fprop_implicit_gemm_bf16"


def program(
    before: tuple[str, ...], stacks: bool = True, norm: str = NORM, backward: bool = False
) -> TraceBuilder:
    """A layer, what is done for its channels, and its norm."""
    builder = TraceBuilder()
    for step in range(4):
        for name in (*before, INVERSE, norm):
            at = "/app/a.py:2 f" if stacks else ()
            builder.launch(
                name, (1 if name is INVERSE else 50) * US, stack=at, peek=step + 1 if backward else None
            )
        builder.launch("relu", 50 * US, stack="/app/a.py:3 f" if stacks else ())
        if backward:
            builder.launch("gemm", 50 * US, thread=2, peek=step + 1, node=step, node_name="NormBackward0")
    return builder


@pytest.mark.parametrize("before", [(LINEAR,), (CONVOLUTION, BIAS)])
def test_fires_behind_a_bias(judge: Judge, before: tuple[str, ...]) -> None:
    (finding,) = judge(RULE, program(before))
    assert finding.cost_ns == 4 * 50 * US and finding.place.line == 2 and finding.events == 4
    assert set(finding.saving.left) == {0} and "fuse_linear_bn_eval" in finding.remedy


@pytest.mark.parametrize(
    "before",
    [
        (CONVOLUTION,),  # torch would add the bias in a kernel of its own
        (BIAS,),
        (LINEAR, "relu"),
        (CONVOLUTION, "relu"),
        (LINEAR, "batch_norm_collect_statistics_kernel"),
        (LINEAR, "relu", BIAS),
    ],
)
def test_silent_where_nothing_is_won(judge: Judge, before: tuple[str, ...]) -> None:
    assert judge(RULE, program(before)) == ()


def test_silent_where_statistics_are_taken_or_it_is_trained(judge: Judge) -> None:
    builder = program((LINEAR,))
    builder.launch("batch_norm_collect_statistics_kernel", US, stack="/app/a.py:2 f")
    assert judge(RULE, builder) == ()
    assert judge(RULE, program((LINEAR,), backward=True)) == ()


def test_silent_on_another_stream_or_far_away(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch(LINEAR, 50 * US, stack="/app/a.py:2 f", stream=6)
        builder.launch(NORM, 50 * US, stack="/app/a.py:2 f", stream=7)
    assert judge(RULE, builder) == ()
    assert judge(RULE, program((LINEAR, *[INVERSE] * 9))) == ()


def test_silent_where_it_is_little(judge: Judge) -> None:
    assert judge(RULE, program((LINEAR,)).launch("gemm", 100_000 * US, stack="/app/a.py:9 main")) == ()


def test_abstains_without_lines(judge: Judge) -> None:
    assert isinstance(judge(RULE, program((LINEAR,), stacks=False, norm="layer_norm")), Abstain)
