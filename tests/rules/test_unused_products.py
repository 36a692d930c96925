# SPDX-License-Identifier: Apache-2.0
"""Products of which a diagonal is used, with a diagonal matrix, or of three in a large order"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.unused_products import RULE

US = 1_000


def program(text: str | None, kernel: str = "nvjet_sm90_tst", gpu_us: int = 60) -> TraceBuilder:
    builder = TraceBuilder()
    if text is not None:
        builder.source("/app/a.py", 1, text)
    for _ in range(4):
        builder.launch(kernel, gpu_us * US, stack="/app/a.py:1 f").launch(
            "copy", 5 * US, stack="/app/a.py:1 f"
        )
        builder.launch("gemm", 40 * US, stack="/app/a.py:9 main")
    return builder


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("return torch.diag(a @ b.t())", "(a * b).sum(-1)"),
        ("same = (a @ b.mT).float().diagonal(dim1=-2, dim2=-1)", "(a * b).sum(-1)"),
        ("loss = torch.trace(torch.mm(a, b))", "(a * b).sum(-1)"),
        ("y = torch.diag(scale) @ x", "d[:, None] * a"),
        ("y = x @ torch.diag_embed(scale).to(x.dtype)", "d[:, None] * a"),
        ("y = torch.matmul(x, torch.eye(n))", "d[:, None] * a"),
    ],
)
def test_fires_on_diagonals(judge: Judge, text: str, remedy: str) -> None:
    (finding,) = judge(RULE, program(text))
    assert finding.cost_ns == 4 * 60 * US and finding.place.line == 1
    assert set(finding.saving.left) == {0.05} and remedy in finding.remedy


@pytest.mark.parametrize(
    "text",
    [
        "scores = a @ b.t()",
        "return torch.diag(a) + a @ b",
        "y = x @ (torch.eye(n) + noise)",
        "same = scores.diagonal()",
        "y = torch.diag(f(a @ b))",
    ],
)
def test_silent_where_products_are_used(judge: Judge, text: str) -> None:
    assert judge(RULE, program(text)) == []


def test_silent_where_nothing_is_multiplied_or_it_is_little(judge: Judge) -> None:
    assert judge(RULE, program("return torch.diag(a @ b.t())", "gemv_kernel")) == []
    assert judge(RULE, program("return torch.diag(a @ b.t())", gpu_us=2)) == []
    assert judge(RULE, TraceBuilder().launch("copy", US)) == ()


def test_abstains_without_text(judge: Judge) -> None:
    assert isinstance(judge(RULE, program(None)), Abstain)


@pytest.mark.parametrize(
    "text",
    [
        "y = (q @ k.mT) @ v",
        "y = q @ k.transpose(-2, -1) @ v / n",
        "y = torch.bmm(torch.bmm(q, k.transpose(1, 2)), v)",
        "return torch.matmul(q.matmul(k.T), v).flatten(2)",
    ],
)
def test_fires_on_a_product_of_all_pairs(judge: Judge, text: str) -> None:
    (finding,) = judge(RULE, program(text))
    assert "q @ (k.mT @ v)" in finding.remedy and "in a large order" in finding.what
    assert set(finding.saving.left) == {0.1} and finding.severity_at_most == "medium"


@pytest.mark.parametrize(
    "text",
    [
        "y = q @ (k.mT @ v)",
        "y = (q @ k.mT).softmax(-1) @ v",
        "y = (q @ k.mT) * mask @ v",
        "y = x @ w1 @ w2",
        "scores = q @ k.mT",
        "y = (q + k.mT) @ v",
    ],
)
def test_silent_about_other_orders(judge: Judge, text: str) -> None:
    assert judge(RULE, program(text)) == []


def chain(last: str, between: str = "") -> TraceBuilder:
    builder = TraceBuilder().source("/app/a.py", 1, "y = a @ b @ x")
    for _ in range(4):
        for kernel in ("nvjet_sm90_tst", *([between] if between else []), last):
            builder.launch(kernel, 60 * US, stack="/app/a.py:1 f")
        builder.launch("softmax", 40 * US, stack="/app/a.py:9 main")
    return builder


def test_fires_on_a_vector_that_comes_last(judge: Judge) -> None:
    (finding,) = judge(RULE, chain("gemv2T_kernel_val<int, float>"))
    assert "a @ (b @ x)" in finding.remedy and finding.severity_at_most == "high"
    assert finding.cost_ns == 4 * 60 * US, "the product of matrices alone"
    assert judge(RULE, chain("nvjet_sm90_tst")) == []
    assert judge(RULE, chain("gemv2T_kernel_val<int, float>", between="nvjet_sm90_other")) == []
