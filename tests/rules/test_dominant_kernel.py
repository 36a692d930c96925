# SPDX-License-Identifier: Apache-2.0
"""A kernel that dominates"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.dominant_kernel import RULE


def kernels(slow_ns: int, others: int = 20) -> TraceBuilder:
    builder = TraceBuilder()
    for i in range(others):
        builder.launch(f"k{i}<float>", 1_000, stack="/app/model.py:3 f")
    builder.launch("slow", slow_ns, stack="/app/model.py:9 g")
    return builder.launch("slow", slow_ns // 10, stack="/app/model.py:8 h")


def test_fires_and_names_the_line_with_most_of_it(judge: Judge) -> None:
    (finding,) = judge(RULE, kernels(10_000))
    assert finding.cost_ns == 11_000 and finding.place.line == 9 and finding.events == 2
    assert "slow takes 35.5 %" in finding.what and "hot spot" not in finding.what
    assert str(finding.evidence[0]) == "operations[20]"
    (finding,) = judge(RULE, kernels(100_000))
    assert "a hot spot" in finding.what


def test_silent_where_none_leads(judge: Judge) -> None:
    assert judge(RULE, kernels(7_000)) == ()


def test_abstains_on_a_handful_of_kernels(judge: Judge) -> None:
    verdict = judge(RULE, kernels(100_000, others=3))
    assert isinstance(verdict, Abstain) and "5 kernels are too few" in verdict.reason


@pytest.mark.parametrize(("blocks", "says"), [(4, "on streams of their own"), (4096, "it is memory-bound")])
def test_the_remedy_of_a_small_grid_is_another_one(judge: Judge, blocks: int, says: str) -> None:
    builder = kernels(7_000).row("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200", smCount=132)
    (finding,) = judge(RULE, builder.launch("vectorized_layer_norm_kernel", 100_000, blocks=blocks))
    assert says in finding.remedy


@pytest.mark.parametrize(
    ("kernel", "says", "not_this"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "profiling-lab ranks", "tensor cores"),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>",
            "uses tensor cores already",
            "use tensor cores (see",
        ),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn", "uses tensor cores already", "use tensor cores (see"),
        ("volta_sgemm_128x64_nt", "use tensor cores (see", "already"),
        ("void at::native::vectorized_elementwise_kernel<4>", "fuse it", "tensor cores"),
        ("mine", "a better algorithm", "tensor cores"),
    ],
)
def test_the_remedy_is_that_of_its_family(judge: Judge, kernel: str, says: str, not_this: str) -> None:
    builder = kernels(7_000)
    (finding,) = judge(RULE, builder.launch(kernel, 100_000))
    assert says in finding.remedy and not_this not in finding.remedy
