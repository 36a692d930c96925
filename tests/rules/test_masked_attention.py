# SPDX-License-Identifier: Apache-2.0
"""Attention that gets its mask as a tensor"""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import RULES, Abstain, run
from profiling_lab.rules.masked_attention import RULE
from profiling_lab.trace import Trace

GEMM = "nvjet_tst_128x64_64x9_1x2_h_bz_TNT"
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0"
CUDNN_BWD = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_kernel0_0"
EFFICIENT = "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<>::Params)"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4> >(Flash_fwd_params)"
WHERE = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<where_kernel_impl("
    "at::TensorIterator&)::{lambda(bool, c10::BFloat16, c10::BFloat16)#1}> >(int)"
)
FILL = (
    "void at::native::elementwise_kernel<128, 2, masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)"
    "::{lambda(c10::BFloat16, bool)#1}>(int)"
)
MAIN = "/app/train.py:9 main > /app/model.py"


def model(
    mask: str | None = WHERE, forward: str = CUDNN, *, blocks: int | None = 8192, masks: int = 6, at: int = 4
) -> TraceBuilder:
    """Six layers: a mask in the first `masks`, 20 µs, attention at line 4, 200 µs, and a product, 100 µs."""
    builder = TraceBuilder()
    for layer in range(6):
        if mask and layer < masks:
            builder.launch(mask, 20_000, blocks=blocks, stack=f"{MAIN}:{at} attend")
        builder.launch(forward, 200_000, blocks=132, stack=f"{MAIN}:4 attend", peek=layer + 1)
        builder.launch(GEMM, 100_000, blocks=132, stack=f"{MAIN}:7 forward")
    return builder


@pytest.mark.parametrize("forward", [CUDNN, EFFICIENT])
@pytest.mark.parametrize("mask", [WHERE, FILL])
def test_fires_where_every_call_converts_a_mask(judge: Judge, mask: str, forward: str) -> None:
    (finding,) = judge(RULE, model(mask, forward))
    assert finding.cost_ns == 6 * 220_000 and finding.events == 12 and finding.place.line == 4
    assert finding.what.startswith("attend gives attention a mask as a tensor: 6 kernels compute what")
    assert "and 6 convert it: 1.320 ms, 68.8 % of the GPU time" in finding.what
    assert "is_causal=True" in finding.remedy and "FlexAttention" in finding.remedy
    assert finding.wins_frac == pytest.approx((0.5 * 200 + 20) / 220), (
        "half of attention, and all of the mask"
    )


def test_backward_counts_too_and_half_of_it_is_saved(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step in range(12):
        began_ns = builder.now_ns
        builder.launch(WHERE, 20_000, blocks=8192, stack=f"{MAIN}:4 attend")
        builder.launch(CUDNN, 200_000, blocks=132, stack=f"{MAIN}:4 attend", peek=step + 1)
        builder.launch(CUDNN_BWD, 400_000, blocks=132, node=step, node_name="SdpaBackward0", thread=2)
        builder.launch(GEMM, 100_000, blocks=132, stack=f"{MAIN}:7 forward")
        builder.range(f"training_step {step}", began_ns, builder.now_ns)
    with Trace.open(builder.write(tmp_path / "run.sqlite")) as trace:
        checked = run(trace, RULES)
    finding = checked.findings[0]
    assert finding.rule == "masked_attention" and "forward and backward" in finding.what
    assert finding.gain_per_step_ns == pytest.approx(320_000, rel=0.05), "half of 600 µs, and the mask"
    assert finding.severity == "medium", "a mask may be needed as it is"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(model(None), id="no mask"),
        pytest.param(model(forward=FLASH), id="FlashAttention knows no mask"),
        pytest.param(model(blocks=2), id="a mask of one row, in decoding"),
        pytest.param(model(at=3), id="what another line chooses is no mask"),
        pytest.param(model(masks=3), id="of half of the calls at this line"),
        pytest.param(model(forward=GEMM), id="no attention"),
    ],
)
def test_silent_without_a_large_mask_for_each_call(judge: Judge, program: TraceBuilder) -> None:
    assert judge(RULE, program) == ()


def test_silent_where_it_takes_little_time(judge: Judge) -> None:
    assert judge(RULE, model().launch(GEMM, 30_000_000, stack=f"{MAIN}:7 forward")) == ()


def test_abstains_where_the_size_of_the_mask_is_unknown(judge: Judge) -> None:
    verdict = judge(RULE, model(blocks=None))
    assert isinstance(verdict, Abstain) and "how many blocks" in verdict.reason


def test_abstains_where_names_tell_nothing(judge: Judge) -> None:
    builder = TraceBuilder()
    builder.launch("mine", 1_000_000, stack="/app/model.py:1 f")
    assert isinstance(judge(RULE, builder), Abstain)


def test_abstains_without_lines(judge: Judge) -> None:
    builder = TraceBuilder().launch(WHERE, 20_000, blocks=8192).launch(CUDNN, 200_000, blocks=132)
    verdict = judge(RULE, builder)
    assert isinstance(verdict, Abstain) and "has a line of your code" in verdict.reason
