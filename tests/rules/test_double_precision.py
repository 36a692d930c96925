# SPDX-License-Identifier: Apache-2.0
"""Products in double precision"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.double_precision import RULE

DOUBLE = (
    "sm90_xmma_gemm_f64f64_f64f64_f64_tn_n_tilesize64x64x16",
    "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(Params)",
    "volta_dgemm_64x64_nn",
    "void gemv2T_kernel_val<int, int, double, double, double>(Params)",
)
SINGLE = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8"


def products(*kernels: str) -> TraceBuilder:
    builder = TraceBuilder()
    for kernel in kernels:
        builder.launch(kernel, 50_000, stack="/app/model.py:7 Net.forward")
    return builder


@pytest.mark.parametrize("kernel", DOUBLE)
def test_fires_for_each_name(judge: Judge, kernel: str) -> None:
    (finding,) = judge(RULE, products(kernel, SINGLE, "elementwise_kernel"))
    assert finding.cost_ns == 50_000 and finding.events == 1 and finding.place.line == 7
    assert "33.3 % of the GPU time" in finding.what and "float32" in finding.remedy


def test_fires_once_for_each_line(judge: Judge) -> None:
    builder = products(DOUBLE[0], DOUBLE[0]).launch(DOUBLE[0], 10_000, stack="/app/model.py:9 f")
    found = {finding.place.line: finding.cost_ns for finding in judge(RULE, builder)}
    assert found == {7: 100_000, 9: 10_000}


def test_silent_without_and_with_little_of_it(judge: Judge) -> None:
    assert judge(RULE, products(SINGLE, "ampere_bf16_s16816gemm_bf16_128x128")) == ()
    assert judge(RULE, products(DOUBLE[0], *[SINGLE] * 60)) == (), "one of 61 products"


def test_abstains_where_the_names_tell_nothing(judge: Judge) -> None:
    verdict = judge(RULE, products("my_kernel", "another"))
    assert isinstance(verdict, Abstain) and verdict.reason
