# SPDX-License-Identifier: Apache-2.0
"""Casts to another dtype"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.dtype_casts import RULE

CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::T&)::"
    "{lambda()#3}, std::array<char*, 2ul>, 4, at::native::memory::LoadWithCast<1>>"
)
UNNAMED = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >"
)
GEMM = "volta_sgemm_64x64_nt"


def program(kernel: str, ns: int, rest: str = GEMM) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(5):
        builder.launch(rest, 100_000, stack="/app/model.py:1 f")
        builder.launch(kernel, ns, stack="/app/model.py:2 f")
    return builder


def test_fires_with_the_remedy_for_casts(judge: Judge) -> None:
    (finding,) = judge(RULE, program(CAST, 25_000))
    assert finding.cost_ns == 5 * 25_000 and finding.place.line == 2 and finding.events == 5
    assert "5 kernels only cast to another dtype" in finding.what and "backward" not in finding.what
    assert "type" in finding.remedy and "channels_last" not in finding.remedy
    assert RULE.severity_at_most == "medium", "every program in mixed precision casts its weights"


@pytest.mark.parametrize(("operator", "cast"), [("aten::_to_copy", True), ("aten::clone", False)])
def test_an_operator_says_what_its_kernel_does_not(judge: Judge, operator: str, cast: bool) -> None:
    builder = TraceBuilder()
    for _ in range(5):
        builder.launch(GEMM, 100_000, stack="/app/model.py:1 f")
        began_ns = builder.now_ns
        builder.launch(UNNAMED, 25_000, stack="/app/model.py:2 f")
        builder.range(operator, began_ns - 200, builder.now_ns)
        builder.range("aten::copy_", began_ns - 100, builder.now_ns - 100)
    assert bool(judge(RULE, builder)) == cast


def test_all_of_it_is_saved_where_nothing_is_trained(judge: Judge) -> None:
    """The weights of a program without backward do not change, so that one cast of each is enough."""

    def saved(builder: TraceBuilder, sees_backward: bool = True) -> float | None:
        if sees_backward:
            builder.row("PYREC_META", name="autograd_link", value="on")
        (finding,) = judge(RULE, builder)
        return finding.wins_frac

    assert saved(program(CAST, 25_000)) == 1.0
    assert saved(program(CAST, 25_000), sees_backward=False) == 0.5, "it may have trained"
    training = program(CAST, 25_000).launch(GEMM, 9_000, stack="/app/model.py:1 f", peek=1)
    training.launch(GEMM, 9_000, node=0, node_name="MmBackward0", thread=2, peek=0)
    assert saved(training) == 0.5


def test_what_is_computed_between_two_casts_is_saved_with_them(judge: Judge) -> None:
    """A weight of eight bits: cast, multiplied by its scale, and cast to the dtype of the product."""
    scale = "void at::native::elementwise_kernel<128, 2, at::native::BinaryFunctor<float, float, float>>"
    norm = "void at::native::vectorized_layer_norm_kernel<float>"
    for between, goes in ((scale, True), (norm, False)):
        builder = TraceBuilder().row("PYREC_META", name="autograd_link", value="on")
        for _ in range(5):
            builder.launch(scale, 9_000, stack="/app/model.py:1 f")
            for line, kernel in ((2, CAST), (2, between), (5, CAST)):
                builder.launch(kernel, 25_000, stack=f"/app/model.py:{line} f{line}")
            builder.launch(GEMM, 100_000, stack="/app/model.py:5 f5")
        one, other = judge(RULE, builder)
        assert one.saving is not None and other.saving is not None
        gone = [set(each.saving.operations.tolist()) for each in (one, other)]
        expected = {5 * i + k for i in range(5) for k in (1, 2, 3)}
        assert (gone[0] == gone[1] == expected) == goes and (gone[0].isdisjoint(gone[1])) == (not goes)
        assert one.cost_ns == 5 * 25_000, "the cost is that of the casts"


def test_silent_where_little_is_cast(judge: Judge) -> None:
    assert judge(RULE, program(CAST, 2_000)) == ()


def test_abstains_where_names_tell_nothing(judge: Judge) -> None:
    assert isinstance(judge(RULE, program("mine", 25_000, rest="other")), Abstain)
