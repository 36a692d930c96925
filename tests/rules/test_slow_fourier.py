# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms of lengths with a large prime factor."""

from __future__ import annotations

from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.slow_fourier import RULE

BLUESTEIN = "void multi_bluestein_fft<128u, EPT<16u>, 32u, 0u, (padding_t)14, float, HostConfigPlaceholder>"
FAST = "void vector_fft<8192u, EPT<16u>, 1u, 1u, (padding_t)70, unsigned int, float, HostConfigPlaceholder>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"


def transforms(*named: tuple[str, int]) -> TraceBuilder:
    builder = TraceBuilder()
    for line, (name, ns) in enumerate(named, 37):
        builder.launch(name, ns, stack=f"/app/model.py:{line} LongConvolution.forward")
    return builder


def test_fires_once_a_function_at_the_hottest_line(judge: Judge) -> None:
    (finding,) = judge(RULE, transforms((BLUESTEIN, 40_000), (ADD, 20_000), (BLUESTEIN, 60_000)))
    assert (finding.place.line, finding.events, finding.cost_ns) == (39, 2, 100_000)
    assert "at 2 lines of one function" in finding.what and "8192 instead of 8191" in finding.remedy


def test_silent_on_fast_lengths_and_on_little(judge: Judge) -> None:
    assert judge(RULE, transforms((FAST, 40_000), (ADD, 60_000))) == ()
    assert judge(RULE, transforms((BLUESTEIN, 2_000), (ADD, 98_000))) == ()


def test_abstains_where_names_tell_nothing(judge: Judge) -> None:
    verdict = judge(RULE, transforms(("my_kernel", 90_000), (ADD, 10_000)))
    assert isinstance(verdict, Abstain)
