# SPDX-License-Identifier: Apache-2.0
"""Kernels that only rearrange memory"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.layout_copies import RULE

COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >"
)
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<4u>, unsigned int, 4, 64, 64>"
LAYOUT = (
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(cudnn::ops::nchw2nhwc_params_t)"
)
GEMM = "volta_sgemm_64x64_nt"


def program(kernel: str, ns: int, rest: str = GEMM) -> TraceBuilder:
    builder = TraceBuilder()
    for _ in range(5):
        builder.launch(rest, 100_000, stack="/app/model.py:1 f")
        builder.launch(kernel, ns, stack="/app/model.py:2 f")
    return builder


@pytest.mark.parametrize("kernel", [COPY, CAT, LAYOUT])
def test_fires_for_each_kind(judge: Judge, kernel: str) -> None:
    (finding,) = judge(RULE, program(kernel, 25_000))
    assert finding.cost_ns == 5 * 25_000 and finding.place.line == 2 and finding.events == 5
    assert "20.0 % of the GPU time" in finding.what


def test_fires_for_copies_within_the_gpu(judge: Judge) -> None:
    builder = program(GEMM, 100).copy("DtoD", 50_000, stack="/app/model.py:9 f")
    (finding,) = judge(RULE, builder)
    assert finding.place.line == 9


def test_a_copy_between_elementwise_kernels_of_its_function_is_left_to_memory_bound(judge: Judge) -> None:
    """As the copy of its input that `masked_fill` fills."""
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
    for function, found in (("f", 0), ("g", 1)):
        builder = program(GEMM, 100).launch(add, 20_000, stack="/app/model.py:8 f")
        builder.copy("DtoD", 50_000, stack=f"/app/model.py:9 {function}")
        builder.launch(add, 20_000, stack="/app/model.py:10 f")
        assert len(judge(RULE, builder)) == found


def test_unfolded_windows_have_a_remedy_of_their_own(judge: Judge) -> None:
    for unfold_ns, remedy in ((20_000, "F.conv2d"), (10_000, "channels_last")):
        builder = program(COPY, 30_000)
        for kernel in ("im2col_kernel<c10::BFloat16>", "col2im_batched_kernel<c10::BFloat16>"):
            builder.launch(f"void at::native::{kernel}", 5 * unfold_ns // 2 + 100, stack="/app/model.py:3 f")
        (finding,) = judge(RULE, builder)
        assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("node", "remedy", "saved"),
    [("CopySlices", "out of place", 1.0), ("CloneBackward0", "keep one layout", 2 / 3)],
)
def test_copies_of_a_view_that_is_changed_in_place_need_not_be(
    judge: Judge, node: str, remedy: str, saved: float
) -> None:
    """`F.relu(linear(x), inplace=True)`: its line multiplies matrices, but no layout asks for the copies."""
    clamp = "void at::native::vectorized_elementwise_kernel<8, at::native::threshold_kernel_impl<T> >"
    builder, line = TraceBuilder(), "/app/model.py:4 f"
    for step in range(5):
        builder.launch(GEMM, 100_000, stack=line, peek=2 * step)
        builder.launch(clamp, 20_000, stack=line, peek=2 * step + 1)
        builder.launch("gemm", 1_000, stack="/app/model.py:9 main", peek=2 * step + 2)
        how = {"thread": 2, "peek": 0, "node": 2 * step + (node == "CopySlices")}  # it is made last
        builder.copy("DtoD", 20_000, node_name=node, **how)
        builder.launch(clamp, 20_000, node_name=node, **how)
        how["node"] = 2 * step
        builder.copy("DtoD", 20_000, node_name="AsStridedBackward0", **how)
    (finding,) = judge(RULE, builder)
    assert finding.place.line == 4 and finding.events == 10 and remedy in finding.remedy
    assert finding.wins_frac == pytest.approx(saved)


def test_copies_between_the_kernels_of_backward_may_be_of_a_changed_view(judge: Judge) -> None:
    """They do not belong to a chain: autograd launches them around a kernel of its own."""
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
    for node, found in (("CopySlices", 1), ("CloneBackward0", 0)):
        builder = TraceBuilder().launch(add, 20_000, stack="/app/model.py:4 f", peek=1)
        builder.launch("gemm", 1_000, stack="/app/model.py:9 main", peek=2)
        for name in ("ReluBackward0", node, "ReluBackward0"):
            how = {"thread": 2, "peek": 0, "node": 0, "node_name": name}
            builder = (
                builder.launch(add, 20_000, **how) if name != node else builder.copy("DtoD", 20_000, **how)
            )
        assert len(judge(RULE, builder)) == found


def test_silent_where_little_is_moved(judge: Judge) -> None:
    assert judge(RULE, program(COPY, 2_000)) == ()


def test_abstains_where_names_tell_nothing(judge: Judge) -> None:
    assert isinstance(judge(RULE, program("mine", 25_000, rest="other")), Abstain)


CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::T&)::"
    "{lambda()#3}, std::array<char*, 2ul>, 4, at::native::memory::LoadWithCast<1>>"
)


def test_casts_are_left_to_their_own_rule(judge: Judge) -> None:
    assert judge(RULE, program(CAST, 25_000)) == ()


def test_lines_of_one_function_are_one_finding(judge: Judge) -> None:
    """Keys and values of a cache grow at two lines, for one reason."""
    builder = program(CAT, 25_000)
    for _ in range(5):
        builder.launch(CAT, 30_000, stack="/app/model.py:3 f").launch(CAT, 40_000, stack="/app/model.py:9 g")
    one, other = judge(RULE, builder)
    assert (one.cost_ns, one.events, one.place.line) == (5 * 55_000, 10, 3)
    assert "at 2 lines of one function" in one.what
    assert (other.cost_ns, other.place.line) == (5 * 40_000, 9) and "lines" not in other.what


def test_conversions_of_cudnn_have_another_remedy(judge: Judge) -> None:
    builder = program(COPY, 25_000)
    for _ in range(5):
        builder.launch(LAYOUT, 60_000, stack="/app/model.py:1 f")
    copies, conversions = judge(RULE, builder)
    assert (copies.place.line, conversions.place.line) == (2, 1), "of one function, but not of one cause"
    assert "contiguous" in copies.remedy and "convert layouts for cuDNN" in conversions.what


def test_a_third_of_what_may_be_needed_stays(judge: Judge) -> None:
    (alone,) = judge(RULE, program(COPY, 25_000))
    assert alone.wins_frac == 1
    builder = program(COPY, 25_000)
    (at_a_product,) = judge(RULE, builder.launch(GEMM, 1_000, stack="/app/model.py:2 f"))
    assert at_a_product.wins_frac == pytest.approx(2 / 3) and at_a_product.cost_ns == 125_000


@pytest.mark.parametrize("right_before", [True, False])
def test_what_cudnn_converts_at_once_goes_with_the_copy(judge: Judge, right_before: bool) -> None:
    """`norm(x).contiguous()` in a model that is not in channels_last: the convolution converts it back."""
    builder = TraceBuilder()
    for step in range(5):
        builder.launch(COPY, 25_000, stack="/app/model.py:2 norm")
        if not right_before:
            builder.launch(GEMM, 1_000, stack="/app/model.py:4 f")
        for kernel in (LAYOUT, LAYOUT, GEMM, LAYOUT):
            builder.launch(kernel, 10_000, stack="/app/model.py:5 f", peek=step + 1)
        builder.launch(GEMM, 30_000, stack="/app/model.py:9 main", peek=step + 1)
        builder.launch(LAYOUT, 10_000, thread=2, node=step, node_name="ConvBackward0", peek=step + 1)
    copies, conversions = judge(RULE, builder)
    assert copies.place.line == 2 and conversions.place.line == 5 and conversions.events == 20
    assert ("cuDNN converts at once" in copies.remedy) is right_before
    assert len(copies.saving.operations) == (25 if right_before else 5) and not copies.saving.left.any()
