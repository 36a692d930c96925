# SPDX-License-Identifier: Apache-2.0
"""Convolutions that take most of the time"""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.slow_convolution import RULE

CONV = "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int)"
LAYOUT = (
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(cudnn::ops::nchw2nhwc_params_t)"
)
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"


def network(conv_ns: int, *more: str, rest: str = ADD) -> TraceBuilder:
    builder = TraceBuilder()
    for name in (CONV, *more):
        builder.launch(name, conv_ns, stack="/app/model.py:3 Net.forward")
    return builder.launch(rest, 100_000 - conv_ns, stack="/app/model.py:4 Net.forward")


def test_fires_and_counts_changes_of_layout(judge: Judge) -> None:
    (finding,) = judge(RULE, network(70_000))
    assert finding.cost_ns == 70_000 and finding.place.line == 3 and "70.0 %" in finding.what
    (finding,) = judge(RULE, network(70_000, LAYOUT))
    assert finding.cost_ns == 140_000 and "0.070 ms of it for layout conversion" in finding.what


FAST = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"


def test_silent_where_tensor_cores_compute_them_without_conversions(judge: Judge) -> None:
    builder = TraceBuilder().launch(FAST, 80_000, stack="/app/model.py:3 Net.forward")
    assert judge(RULE, builder.launch(ADD, 20_000, stack="/app/model.py:4 Net.forward")) == ()
    (finding,) = judge(RULE, builder.launch(LAYOUT, 30_000, stack="/app/model.py:5 Net.forward"))
    assert (finding.cost_ns, finding.place.line) == (30_000, 5), "what the conversions take"


def test_silent_where_they_do_not_dominate(judge: Judge) -> None:
    assert judge(RULE, network(50_000)) == ()


def test_abstains_where_names_tell_nothing(judge: Judge) -> None:
    assert isinstance(judge(RULE, network(10_000, rest="my_kernel")), Abstain)


GENERIC = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel_generic<float, int>()"


def echoes(took_ns: int, kernel: str = GENERIC, rest_ns: int = 10_000_000, **how: int) -> TraceBuilder:
    """3000 blocks of 128 threads, on the builder's GPU."""
    builder = TraceBuilder().row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200", smCount=132)
    for _ in range(3):
        builder.launch(kernel, took_ns, stack="/app/reverb.py:3 echo", **({"blocks": 3_000} | how))
        builder.launch("nvjet_gemm", rest_ns, stack="/app/reverb.py:9 net")
    return builder


def test_fires_on_filters_of_a_thousand_taps(judge: Judge) -> None:
    """Whatever else there is: 2.0e6 ns * 132 SMs * 25 / 384,000 results are 17,188 multiplications each."""
    (finding,) = judge(RULE, echoes(2_000_000))
    assert finding.cost_ns == 6_000_000 and "about 17,188 taps" in finding.what
    assert "irfft" in finding.remedy and set(finding.saving.left) == {0.2}


def test_silent_about_short_filters_and_other_kernels(judge: Judge) -> None:
    (finding,) = judge(RULE, echoes(100_000, rest_ns=1_000))
    assert "taps" not in finding.what and set(finding.saving.left) == {0.5}
    assert judge(RULE, echoes(2_000_000, kernel="conv_depthwise2d_forward_kernel<3, float, int>")) == ()
    assert judge(RULE, echoes(2_000_000, rest_ns=100_000_000)) == ()
