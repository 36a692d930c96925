# SPDX-License-Identifier: Apache-2.0
"""Indices that become rows with a single one"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.one_hot import RULE

US = 1_000
GEMM, ELEMENTWISE = "nvjet_sm90_tst", "vectorized_elementwise_kernel<4, MulFunctor<float>>"


def program(*lines: str, kernel: str = GEMM, use_us: int = 50) -> TraceBuilder:
    """Rows are made at line 1, and used at the last line, where they are trained through."""
    builder = TraceBuilder()
    for number, line in enumerate(lines, 1):
        builder.source("/app/a.py", number, line)
    last = f"/app/a.py:{max(len(lines), 1)} f"
    for step in range(4):
        builder.launch("fill", 20 * US, stack="/app/a.py:1 f").launch(
            "scatter", 5 * US, stack="/app/a.py:1 f"
        )
        builder.launch(kernel, use_us * US, stack=last, peek=step + 1)
        how = {"thread": 2, "peek": step + 1, "node": step, "node_name": "MulBackward0"}
        builder.launch(kernel, use_us * US, **how)
        builder.launch("conv", 100 * US, stack="/app/a.py:20 main")
    return builder


@pytest.mark.parametrize(
    "lines",
    [
        ("rows = F.one_hot(index, classes).to(x.dtype)", "y = rows @ table"),
        ("rows = torch.eye(classes)[index]", "y = torch.matmul(rows, table)"),
        ("index = F.one_hot(index, classes).float()", "y = index @ table"),
        ("y = F.one_hot(index, classes).float() @ table",),
    ],
)
def test_fires_on_products(judge: Judge, lines: tuple[str, ...]) -> None:
    (finding,) = judge(RULE, program(*lines))
    assert finding.cost_ns == 4 * (25 + 2 * 50) * US and "F.embedding" in finding.remedy
    assert sorted(set(finding.saving.left)) == [0, 0.05, 0.1]
    assert "8 operations to make them and 8 to use them" in finding.what


@pytest.mark.parametrize(
    "lines",
    [
        ("wanted = F.one_hot(truth, words)", "return -(wanted * log_p).sum(dim=1).mean()"),
        ("loss = -torch.sum(log_p * F.one_hot(truth, words), dim=1)",),
    ],
)
def test_fires_on_sums_of_elementwise_products(judge: Judge, lines: tuple[str, ...]) -> None:
    (finding,) = judge(RULE, program(*lines, kernel=ELEMENTWISE))
    assert sorted(set(finding.saving.left)) == [0, 0.05, 0.33] and "gather()" in finding.remedy


@pytest.mark.parametrize(
    "lines",
    [
        ("rows = F.one_hot(index, classes).float()", "y = model(rows)"),
        ("rows = F.one_hot(index, classes).float()", "y = rows @ table", "z = rows + 1"),
        ("soft = 0.9 * F.one_hot(index, classes) + 0.1", "y = (soft * log_p).sum()"),
        ("y = model(F.one_hot(index, classes)) @ table",),
        ("rows = F.one_hot(index, classes)", "y = rows * log_p"),
        ("rows = torch.eye(classes)", "y = rows @ table"),
        ("rows = torch.zeros(classes)[index]", "y = rows @ table"),
        ("rows = F.one_hot(index, classes)",),
    ],
)
def test_silent_where_they_are_not_used_to_pick(judge: Judge, lines: tuple[str, ...]) -> None:
    assert judge(RULE, program(*lines)) == []


def test_silent_where_it_is_little(judge: Judge) -> None:
    few = program("y = F.one_hot(index, classes).float() @ table", use_us=1)
    assert judge(RULE, few.launch("conv", 10_000 * US, stack="/app/a.py:20 main")) == []


def test_silent_without_text_where_nothing_scatters(judge: Judge) -> None:
    assert judge(RULE, TraceBuilder().launch(GEMM, US, stack="/app/a.py:1 f")) == ()


def test_abstains_without_text(judge: Judge) -> None:
    assert isinstance(judge(RULE, program()), Abstain)
