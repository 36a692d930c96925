# SPDX-License-Identifier: Apache-2.0
"""Products without tensor cores"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.tensor_cores import RULE

WITHOUT = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(Params)",
    "volta_sgemm_64x64_nt",
    "volta_scudnn_128x128_stridedB_splitK_small_nn_v1",
    "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int)",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int)",
)
ATTENTION = (
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<float, cutlass::arch::Sm80, true>::Params)",
    "fmha_cutlassB_f32_aligned_64x64_k64_sm80(AttentionBackwardKernel<cutlass::arch::Sm80, float>::Params)",
)
WITH = (
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4>(Params)",
    "volta_h884cudnn_256x128_ldg8_relu_exp_small_nhwc_tn_v1",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(Flash_fwd_params)",
)


def run_of(*kernels: str, major: int = 9) -> TraceBuilder:
    builder = TraceBuilder()
    for kernel in kernels:
        builder.launch(kernel, 50_000, stack="/app/model.py:7 Net.forward")
    return builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="GPU", computeMajor=major, computeMinor=0)


@pytest.mark.parametrize("kernel", WITHOUT)
def test_fires_for_each_name_without(judge: Judge, kernel: str) -> None:
    (finding,) = judge(RULE, run_of(kernel, kernel, "elementwise_kernel"))
    assert finding.cost_ns == 100_000 and finding.events == 2 and finding.place.line == 7
    assert (
        "66.7 % of the GPU time, are matrix multiplications and convolutions without tensor cores"
        in finding.what
    )


@pytest.mark.parametrize("kernel", ATTENTION)
def test_attention_of_float32_counts_with_the_products(judge: Judge, kernel: str) -> None:
    (finding,) = judge(RULE, run_of(WITHOUT[0], kernel, "elementwise_kernel"))
    assert finding.cost_ns == 100_000 and "with 0.050 ms of attention in float32" in finding.what
    (finding,) = judge(RULE, run_of(WITHOUT[0], kernel.replace("_f32_", "_f16_"), WITH[0]))
    assert finding.cost_ns == 50_000 and "attention" not in finding.what


TORCH = "/v/site-packages/torch/autograd"
ENGINE = f"/app/train.py:3 main > {TORCH}/graph.py:800 _engine_run_backward > {TORCH}/function.py:300 apply"


@pytest.mark.parametrize(("in_torch", "line"), [(1, 9), (2, 9), (5, 3)])
def test_the_line_is_that_of_a_backward_of_your_own_where_most_was_launched_there(
    judge: Judge, in_torch: int, line: int
) -> None:
    """A Function's forward has no product, and its line would not show what to change.

    in_torch: products that torch itself launches in backward of the same forward line.
    """
    builder = run_of().launch("x", 1_000, stack="/app/train.py:1 main", peek=0)
    builder.launch("quantize", 1_000, stack="/app/train.py:2 main > /app/linear.py:3 Quant.forward", peek=1)
    for own in (9, 9, 9, 10):
        stack = f"{ENGINE} > /app/linear.py:{own} Quant.backward"
        builder.launch(WITHOUT[0], 50_000, stack=stack, node=0, node_name="QuantBackward", peek=1)
    for _ in range(in_torch):
        builder.launch(WITHOUT[0], 50_000, stack=ENGINE, node=0, node_name="QuantBackward", peek=1)
    (finding,) = judge(RULE, builder)
    assert (finding.place.file, finding.place.line) == ("/app/linear.py", line)


CAST = "void unrolled_elementwise_kernel<direct_copy_kernel_cuda, LoadWithCast<1>, StoreWithCast<1> >(int)"
TO_16_BITS = "void vectorized_elementwise_kernel<8, bfloat16_copy_kernel_cuda(TensorIteratorBase&)>(int)"


@pytest.mark.parametrize(
    ("back", "behind", "saved"),
    [(TO_16_BITS, 1, 2), (CAST, 1, 0), (TO_16_BITS, 2, 0), ("elementwise_kernel", 1, 0)],
)
def test_casts_that_only_the_product_needs_are_saved_with_it(
    judge: Judge, back: str, behind: int, saved: int
) -> None:
    """`F.linear(x.float(), weight)`: that x had 16 bits is known where its gradient is cast to them."""
    builder = TraceBuilder()
    for number in range(5):
        stack = "/app/model.py:7 Net.forward"
        builder.launch(CAST, 20_000, stack="/app/model.py:6 Net.forward", peek=2 * number)
        builder.launch(CAST, 10_000, stack=stack, peek=2 * number)
        builder.launch(WITHOUT[0], 50_000, stack=stack, peek=2 * number + 1)
        for name, node in ((WITHOUT[0], 0), *[(WITH[0], None)] * (behind - 1), (back, 0)):
            mine = {} if node is None else {"node": 2 * number, "node_name": "MmBackward0"}
            builder.launch(name, 50_000, thread=2, peek=0, **mine)
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 5 * 100_000, "of the products alone"
    assert int((finding.saving.left == 0).sum()) == 5 * saved
    assert ("x.float()" in finding.remedy) is (saved > 0)


def test_a_result_that_is_cast_to_16_bits_is_made_in_them(judge: Judge) -> None:
    builder = TraceBuilder()
    for _ in range(5):
        for name in (CAST, WITHOUT[0], TO_16_BITS):
            builder.launch(name, 50_000, stack="/app/model.py:7 Net.forward")
    (finding,) = judge(RULE, builder)
    assert int((finding.saving.left == 0).sum()) == 5, "what is read may be integers"


@pytest.mark.parametrize("kernel", WITH)
def test_silent_for_each_name_with(judge: Judge, kernel: str) -> None:
    assert judge(RULE, run_of(kernel, kernel, "elementwise_kernel")) == ()


@pytest.mark.parametrize(
    "kernel",
    [
        "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x64_tn_align1",
        "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x64_64x4_tn_align2>(Params)",
        "volta_h884gemm_128x64_ldg4_nn",
    ],
)
def test_fires_on_products_of_unaligned_rows(judge: Judge, kernel: str) -> None:
    (finding,) = judge(RULE, run_of(kernel, kernel, WITH[0]))
    assert finding.cost_ns == 100_000 and finding.wins_frac == 0.75 and "unaligned rows" in finding.what
    both = judge(RULE, run_of(kernel, WITHOUT[0]))
    assert ["without tensor cores" in each.what for each in both] == [True, False]
    assert judge(RULE, run_of(kernel, *[WITH[0]] * 20)) == (), "too little to be worth the change"


def test_fires_however_many_others_use_them(judge: Judge) -> None:
    (finding,) = judge(RULE, run_of(*[WITH[0]] * 9, WITHOUT[0]))
    assert finding.cost_ns == 50_000 and "10.0 % of the GPU time" in finding.what


def test_silent_on_a_gpu_that_has_none(judge: Judge) -> None:
    assert judge(RULE, run_of(WITHOUT[2], major=6)) == ()


def test_an_operator_for_products_counts_whatever_its_kernel_is_called(judge: Judge) -> None:
    builder = TraceBuilder().launch("my_product", 50_000).launch("elementwise_kernel", 10_000)
    call = builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][0]
    builder.range("aten::mm, seq = 0, op_id = 8", call["start"] - 10, call["end"] + 10)
    verdict = judge(RULE, builder)
    assert (
        isinstance(verdict, Abstain)
        and "100.0 % of the matrix multiplication time are not known" in verdict.reason
    )


def test_abstains_where_no_name_is_a_products(judge: Judge) -> None:
    verdict = judge(RULE, run_of("my_kernel"))
    assert isinstance(verdict, Abstain) and "torch.profiler" in verdict.to_record
    operators = run_of("elementwise_kernel").range("aten::add", 0, 1)
    assert judge(RULE, operators) == (), "torch noted its operators: no product is among them"
