# SPDX-License-Identifier: Apache-2.0
"""Memory-bound kernels."""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.memory_bound import RULE

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float)"
GEMM = "volta_sgemm_64x64_nt"
COPY = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(T&)::{lambda()#3}>"


def kernels(*named: tuple[str, int]) -> TraceBuilder:
    builder = TraceBuilder()
    for line, (name, ns) in enumerate(named, 1):
        builder.launch(name, ns, stack=f"/app/model.py:{line} f")
    return builder


def test_fires_and_names_the_hottest_line(judge: Judge) -> None:
    (finding,) = judge(RULE, kernels((GEMM, 50_000), (ADD, 30_000), (NORM, 20_000)))
    assert finding.cost_ns == 50_000 and finding.events == 2 and finding.place.line == 2
    assert "50.0 % of the GPU time, are spent in 2 memory-bound kernels" in finding.what


def test_copies_of_a_layout_are_left_to_their_own_rule(judge: Judge) -> None:
    (finding,) = judge(RULE, kernels((GEMM, 20_000), (ADD, 30_000), (COPY, 40_000)))
    assert finding.cost_ns == 30_000 and finding.events == 1 and finding.place.line == 2


@pytest.mark.parametrize(
    ("named", "saved_ns"),
    [
        ([(ADD, 30_000), (NORM, 20_000), (ADD, 40_000)], 50_000),
        ([(ADD, 30_000), (GEMM, 9_000), (NORM, 20_000), (ADD, 40_000)], 20_000),
        ([(ADD, 30_000), (COPY, 9_000), (NORM, 20_000)], 20_000),
        ([(ADD, 30_000), (GEMM, 9_000), (NORM, 20_000)], 0),
        ([("multi_tensor_apply_kernel<AddFunctor>", 30_000)] * 3, 0),
    ],
)
def test_fusion_leaves_the_longest_of_each_chain(
    judge: Judge, named: list[tuple[str, int]], saved_ns: int
) -> None:
    (finding,) = judge(RULE, kernels((GEMM, 1_000), *named))
    assert finding.wins_frac is not None and finding.wins_frac * finding.cost_ns == pytest.approx(saved_ns)


CAST = "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(T&)>"
INDEX = "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<T> >"


@pytest.mark.parametrize(
    ("named", "counted_ns", "saved_ns"),
    [
        ([(ADD, 30_000), ("DtoD", 9_000), (ADD, 20_000)], 59_000, 29_000),
        ([(ADD, 30_000), ("DtoD", 9_000), ("DtoD", 8_000), (ADD, 20_000)], 67_000, 37_000),
        ([(ADD, 30_000), ("DtoD", 40_000), (ADD, 20_000)], 90_000, 50_000),
        ([(ADD, 30_000), ("DtoD", 9_000), (GEMM, 1_000), (ADD, 20_000)], 50_000, 0),
        ([(ADD, 30_000), ("DtoD", 9_000), (INDEX, 20_000)], 50_000, 0),
        ([(ADD, 30_000), (CAST, 9_000)], 39_000, 9_000),
        ([(ADD, 30_000), (GEMM, 1_000), (CAST, 9_000)], 30_000, 0),
    ],
)
def test_copies_and_casts_among_elementwise_kernels_fuse_with_them(
    judge: Judge, named: list[tuple[str, int]], counted_ns: int, saved_ns: int
) -> None:
    builder = kernels((GEMM, 1_000))
    for line, (name, ns) in enumerate(named, 2):
        stack = f"/app/model.py:{line} f"
        builder = (
            builder.copy(name, ns, stack=stack) if name == "DtoD" else builder.launch(name, ns, stack=stack)
        )
    (finding,) = judge(RULE, builder)
    assert finding.wins_frac is not None and finding.cost_ns == counted_ns
    assert finding.wins_frac * finding.cost_ns == pytest.approx(saved_ns)


def test_a_copy_between_kernels_of_other_functions_is_none_of_their_chain(judge: Judge) -> None:
    builder = TraceBuilder().launch(ADD, 30_000, stack="/app/model.py:1 f")
    builder.copy("DtoD", 9_000, stack="/app/model.py:5 g").launch(ADD, 20_000, stack="/app/model.py:2 f")
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == 50_000 and finding.wins_frac == 0


def test_kernels_of_two_streams_are_no_chain(judge: Judge) -> None:
    builder = TraceBuilder().launch(ADD, 30_000, stream=7).launch(NORM, 20_000, stream=8)
    (finding,) = judge(RULE, builder.launch(ADD, 10_000, stream=8))
    assert finding.wins_frac == pytest.approx(10_000 / 60_000)


def norms(blocks: int | None, sms: int | None = 132) -> TraceBuilder:
    builder = TraceBuilder().launch(GEMM, 20_000, blocks=128).launch(NORM, 80_000, blocks=blocks)
    return builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200", smCount=sms)


@pytest.mark.parametrize("blocks", [4, 32])
def test_silent_on_a_kernel_that_leaves_most_sms_free(judge: Judge, blocks: int) -> None:
    """Four of 132 SMs cannot use the bandwidth of the memory, and fusing does not give it more blocks."""
    assert judge(RULE, norms(blocks)) == ()


@pytest.mark.parametrize(("blocks", "sms"), [(33, 132), (4096, 132), (None, 132), (4, None)])
def test_fires_on_a_grid_that_is_large_or_not_known(
    judge: Judge, blocks: int | None, sms: int | None
) -> None:
    (finding,) = judge(RULE, norms(blocks, sms))
    assert finding.cost_ns == 80_000 and finding.events == 1


def test_silent_on_kernels_that_are_over_as_soon_as_they_have_started(judge: Judge) -> None:
    """What limits them is their start: a loop of them is the matter of tiny_kernels."""
    assert judge(RULE, kernels((GEMM, 50_000), *[(ADD, 2_100)] * 100)) == ()
    (finding,) = judge(RULE, kernels((GEMM, 50_000), (ADD, 30_000), (ADD, 2_100), (NORM, 20_000)))
    assert finding.cost_ns == 50_000 and finding.wins_frac == pytest.approx(0.4), "they end no chain"


def test_silent_where_products_take_the_time(judge: Judge) -> None:
    assert judge(RULE, kernels((GEMM, 90_000), (ADD, 10_000))) == ()


def test_abstains_where_names_tell_nothing(judge: Judge) -> None:
    verdict = judge(RULE, kernels(("my_kernel", 90_000), (ADD, 10_000)))
    assert (
        isinstance(verdict, Abstain)
        and "90.0 % of the GPU time have names of no known family" in verdict.reason
    )
