# SPDX-License-Identifier: Apache-2.0
"""Both halves of the spectrum of a real signal"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.mirrored_spectrum import RULE

US = 1_000
MIRROR = "void at::native::_fft_conjugate_copy_kernel<c10::complex<float>>()"
FORWARD, BOTH_WAYS = "void vector_fft_symm_r2c<128u, float>()", "void regular_fft<128u, float>()"
TIMES = "void at::native::vectorized_elementwise_kernel<2, at::native::BinaryFunctor<c10::complex<float>>>()"


def program(
    inverse: str | None = "return torch.fft.ifft(spectrum * gain).real",
    mirror: str = MIRROR,
    stacks: bool = True,
    function: str = "f",
    trained: bool = False,
) -> TraceBuilder:
    builder = TraceBuilder()
    if inverse:
        builder.source("/app/a.py", 2, inverse)
    for step in range(4):
        for name, us, line in ((FORWARD, 30, 1), (mirror, 20, 1), (TIMES, 20, 2), (BOTH_WAYS, 60, 2)):
            stack = f"/app/a.py:{line} {'f' if line == 1 else function}"
            builder.launch(name, us * US, stack=stack if stacks else (), peek=step + 1 if trained else None)
        builder.launch(
            "vectorized_elementwise_kernel<4, float>", 50 * US, stack="/app/a.py:3 f" if stacks else ()
        )
        if trained:
            how = {"thread": 2, "peek": step + 1, "node": step, "node_name": "MulBackward0"}
            builder.launch(TIMES, 40 * US, **how)
    return builder


@pytest.mark.parametrize(
    "inverse",
    ["return torch.fft.ifft(spectrum * gain).real", "y = torch.real(torch.fft.ifft2(spectrum * gain))"],
)
def test_fires_on_a_mirrored_half_that_is_transformed_back(judge: Judge, inverse: str) -> None:
    (finding,) = judge(RULE, program(inverse))
    assert finding.cost_ns == 4 * (20 + 10 + 30) * US and finding.place.line == 1
    assert "rfft" in finding.remedy and "4 spectra" in finding.what
    left = dict(zip(finding.saving.operations.tolist(), finding.saving.left.tolist(), strict=True))
    assert [left[row] for row in (1, 2, 3)] == [0, 0.5, 0.5] and len(left) == 12


@pytest.mark.parametrize("inverse", ["return torch.fft.ifft(spectrum * gain)", None])
def test_a_complex_result_needs_all_of_its_transform(judge: Judge, inverse: str | None) -> None:
    (finding,) = judge(RULE, program(inverse))
    assert finding.cost_ns == 4 * (20 + 10) * US


def test_other_functions_are_not_its_own(judge: Judge) -> None:
    (finding,) = judge(RULE, program(function="g"))
    assert finding.cost_ns == 4 * 20 * US


def test_silent_for_complex_signals(judge: Judge) -> None:
    assert judge(RULE, program(mirror="void vector_fft<128u, float>()")) == ()


def test_silent_where_it_is_little(judge: Judge) -> None:
    assert judge(RULE, program().launch("gemm", 100_000 * US, stack="/app/a.py:9 main")) == ()


def test_backward_is_not_counted(judge: Judge) -> None:
    (finding,) = judge(RULE, program(trained=True))
    assert finding.cost_ns == 4 * (20 + 10 + 30) * US


def test_the_way_there_stays(judge: Judge) -> None:
    """All in one line."""
    builder = TraceBuilder().source("/app/a.py", 1, "return torch.fft.ifft(torch.fft.fft(x) * gain).real")
    for name, us in ((FORWARD, 30), (MIRROR, 20), (TIMES, 20), (BOTH_WAYS, 60)):
        builder.launch(name, us * US, stack="/app/a.py:1 f")
    (finding,) = judge(RULE, builder)
    assert finding.cost_ns == (20 + 10 + 30) * US


def test_abstains_without_lines(judge: Judge) -> None:
    little = program(stacks=False).launch("gemm", 100_000 * US)
    assert isinstance(judge(RULE, little), Abstain)
