# SPDX-License-Identifier: Apache-2.0
"""Products in double precision"""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import RULES, Abstain, run
from profiling_lab.rules.double_precision import RULE
from profiling_lab.trace import Trace

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


def test_fires_once_for_each_function(judge: Judge) -> None:
    builder = products(DOUBLE[0], DOUBLE[0]).launch(DOUBLE[0], 10_000, stack="/app/model.py:9 f")
    builder.launch(DOUBLE[0], 60_000, stack="/app/model.py:8 Net.forward")
    found = {finding.place.line: finding.cost_ns for finding in judge(RULE, builder)}
    assert found == {7: 160_000, 9: 10_000}


@pytest.mark.parametrize(
    "kernel",
    [
        "void vector_fft_r2c<1024u, EPT<16u>, 1u, (padding_t)70, unsigned int, double>(args)",
        "void regular_fft<64u, EPT<8u>, 8u, 1u, unsigned int, double2>(args)",
        "vectorized_elementwise_kernel<2, at::native::AUnaryFunctor<double, double, double> >",
        "vectorized_elementwise_kernel<2, at::native::CUDAFunctor_add<double>, std::array<char*, 3ul> >(int)",
        "vectorized_elementwise_kernel<2, at::native::CUDAFunctorOnSelf_add<double>, A<char*> >",
        "void at::native::elementwise_kernel<128, 4, at::native::BinaryFunctor<c10::complex<double>, int> >",
        "void at::native::vectorized_elementwise_kernel<2, GeluCUDAKernelImpl(T&)::{lambda(double)#1}>(int)",
    ],
)
def test_half_of_what_memory_limits_can_be_saved(judge: Judge, kernel: str) -> None:
    """A filter with a window from NumPy: transforms and elementwise kernels in float64."""
    (finding,) = judge(RULE, products(kernel, SINGLE, DOUBLE[0]))
    assert finding.cost_ns == 25_000 + 50_000 and finding.events == 2
    assert "2 kernels in float64, 1 of them matrix multiplications" in finding.what


def test_functions_that_call_each_other_are_one_finding(judge: Judge) -> None:
    """A float64 tensor that a model gets makes float64 of what its parts compute with it."""
    builder, model = TraceBuilder(), "/app/train.py:3 main > /app/model.py:7 Net.forward"
    builder.launch(DOUBLE[0], 50_000, stack=model).launch(SINGLE, 50_000, stack="/app/train.py:3 main")
    builder.launch(DOUBLE[0], 60_000, stack=f"{model} > /app/parts.py:5 Part.forward > /app/loss.py:6 deep")
    builder.launch(DOUBLE[0], 70_000, stack=f"{model} > /app/parts.py:9 Other.forward")
    builder.launch(DOUBLE[0], 80_000, stack="/app/train.py:3 main > /app/metric.py:4 measure")
    net, metric = sorted(judge(RULE, builder), key=lambda finding: -finding.cost_ns)
    assert net.cost_ns == 180_000 and net.events == 3 and net.place.line == 9
    assert "at 3 lines of 3 functions that call each other, take" in net.what
    assert metric.cost_ns == 80_000 and metric.place.line == 4, "main itself has no float64"


def test_a_function_called_from_two_joins_them(judge: Judge) -> None:
    builder = TraceBuilder()
    for caller in ("model.py:7 forward", "metric.py:4 measure"):
        builder.launch(DOUBLE[0], 50_000, stack=f"/app/{caller}")
        builder.launch(DOUBLE[0], 60_000, stack=f"/app/{caller} > /app/loss.py:6 log_prob")
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 220_000 and "3 functions that call each other" in finding.what


@pytest.mark.parametrize("name", ["lgamma_kernel", "digamma", "polygamma", "i0e", "modified_bessel_i0"])
@pytest.mark.parametrize(("width", "cost_ns"), [(2, 25_000), (4, 0)])
def test_special_functions_compiled_for_two_numbers_at_once(
    judge: Judge, name: str, width: int, cost_ns: int
) -> None:
    """Their names have no type: 16 bytes are two numbers of float64 or four of float32."""
    found = judge(RULE, products(f"{name}_vectorized{width}_kernel", SINGLE, "elementwise_kernel"))
    assert sum(finding.cost_ns for finding in found) == cost_ns


@pytest.mark.parametrize(
    "kernel",
    [
        "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>, float const*, double, double, bool>",
        "void vector_fft_r2c<1024u, EPT<16u>, 1u, (padding_t)70, unsigned int, float>(args)",
        "vectorized_elementwise_kernel<4, pow_tensor_scalar_kernel_impl<float, double>::{lambda(float)#1}>",
    ],
)
def test_a_parameter_in_double_does_not_make_it_so(judge: Judge, kernel: str) -> None:
    assert judge(RULE, products(kernel, SINGLE)) == ()


def test_silent_without_and_with_little_of_it(judge: Judge) -> None:
    assert judge(RULE, products(SINGLE, "ampere_bf16_s16816gemm_bf16_128x128")) == ()
    assert judge(RULE, products(DOUBLE[0], *[SINGLE] * 60)) == (), "one of 61 products"


def test_abstains_where_the_names_tell_nothing(judge: Judge) -> None:
    verdict = judge(RULE, products("my_kernel", "another"))
    assert isinstance(verdict, Abstain) and verdict.reason


def solving(factor: str, factor_ns: int, elsewhere_ns: int) -> TraceBuilder:
    """A factorisation at line 7, which multiplies blocks, too, and another product of its function."""
    builder = TraceBuilder()
    for _ in range(4):
        builder.launch(factor, factor_ns, stack="/app/model.py:7 Net.forward")
        builder.launch(DOUBLE[0], 50_000, stack="/app/model.py:7 Net.forward")
        builder.launch(DOUBLE[0], elsewhere_ns, stack="/app/model.py:9 Net.forward")
        builder.launch(SINGLE, 50_000, stack="/app/model.py:12 other")
    return builder


@pytest.mark.parametrize(
    "factor",
    [
        "void kernel<getrf_wo_pivot_params_<double, 0, 256, 2, 64, 64, 68, 16, 1, 1> >(int, int, void*)",
        "void kernel_trsm_l_mul32<double, 8, false, false, false, false>(int, int, double const*)",
        "void trsm_left_kernel<int, double, 256, 4, true, false, true, false, false>(cublasTrsmParams)",
        "void trsv_lt_exec<double, 32u, 32u, 4u, false, false>(int, double const*, long)",
    ],
)
def test_where_most_of_it_factorises_or_solves_it_may_be_meant(tmp_path: Path, factor: str) -> None:
    """The covariance of a Gaussian process has no factor in float32."""
    meant = {}
    for case, program in {
        "factorises": solving(factor, 30_000, 40_000),
        "in float32": solving(factor.replace("double", "float"), 30_000, 40_000),
        "by the way": solving(factor, 2_000, 40_000),
        "mostly elsewhere": solving(factor, 30_000, 60_000),
    }.items():
        with Trace.open(program.write(tmp_path / f"{case}.sqlite")) as trace:
            (finding,) = (f for f in run(trace, RULES).findings if f.rule == "double_precision")
        meant[case] = (finding.severity, "may be meant" in finding.what, finding.confidence)
        assert ("if float32 is exact enough" in finding.remedy) == (case == "factorises")
    assert meant.pop("factorises") == ("medium", True, "low")
    assert set(meant.values()) == {("high", False, "high")}
