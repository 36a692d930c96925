# SPDX-License-Identifier: Apache-2.0
"""Sorts of which a part of the order is used"""

from __future__ import annotations

import pytest
from builders import Judge, TraceBuilder

from profiling_lab.rules import Abstain
from profiling_lab.rules.sorted_whole import RULE

FILE, US = "/app/a.py", 1_000
SORT = "void cub::detail::radix_sort::DeviceSegmentedRadixSortKernel<float, long>()"


def program(text: str | None, *others: str, function: str = "f", sort: str = SORT) -> TraceBuilder:
    """The line with the sort, and others of its function."""
    builder = TraceBuilder()
    for number, line in enumerate((text, *others), 1):
        if line is not None:
            builder.source(FILE, number, line)
    for _ in range(4):
        builder.launch(sort, 60 * US, stack=f"{FILE}:1 f").launch("copy", 10 * US, stack=f"{FILE}:1 f")
        for number in range(2, len(others) + 2):
            builder.launch("gather", 20 * US, stack=f"{FILE}:{number} {function}")
        builder.launch("gemm", 20 * US, stack=f"{FILE}:20 main")
    return builder


@pytest.mark.parametrize(
    ("text", "left", "remedy"),
    [
        ("best = x.sort(dim=-1, descending=True).indices[:, 0]", 0.1, "argmax()"),
        ("best = x.argsort(dim=-1)[..., -1]", 0.1, "argmax()"),
        ("return values.sort(dim=1).values[:, middle : middle + 1]", 0.33, "kthvalue()"),
        ("return torch.sort(x)[0][:k].mean()", 0.33, "topk()"),
        ("worst = losses.sort().values[-k:]", 0.33, "topk()"),
        ("order = x.argsort()[:k]", 0.33, "topk()"),
        ("place = (x.argsort(dim=1) == right[:, None]).nonzero()", 0.1, "(x > value).sum()"),
    ],
)
def test_fires_on_a_part_of_the_order(judge: Judge, text: str, left: float, remedy: str) -> None:
    (finding,) = judge(RULE, program(text))
    assert finding.cost_ns == 4 * 60 * US and finding.place.line == 1
    assert set(finding.saving.left) == {left} and finding.wins_frac == 1 - left and remedy in finding.remedy


def test_fires_where_the_order_has_a_name(judge: Judge) -> None:
    (finding,) = judge(RULE, program("values, order = x.sort(dim=1)", "y = table[order[:, :k]]"))
    assert set(finding.saving.left) == {0.33}
    (finding,) = judge(RULE, program("order = x.argsort(dim=1)", "return torch.where(order == right)[1]"))
    assert set(finding.saving.left) == {0.1}


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("order = x.argsort(dim=1)", ()),  # what is done with it is not known
        ("order = x.argsort(dim=1)", ("y = table[order]",)),
        ("order = x.argsort(dim=1)", ("y = table[order[:k]]", "z = order + 1")),
        ("both = x.sort()", ("y = table[both[0]]",)),  # the values, all of them
        ("both = x.sort().values", ("y = both[mask]",)),
        ("ranks = x.argsort().argsort()", ()),
        ("y = x.sort().values[1:] - 1", ()),
        ("y = x.sort().values[:-1]", ()),
        ("y = x.sort().values[..., None]", ()),
        ("y = x.sort()[0]", ()),
        ("y = x.argsort() > 3", ()),
        ("y = table[:, 0]", ()),
        ("y = table[x.argsort()]", ()),
        ("y = x.sort(", ()),
    ],
)
def test_silent_where_all_of_it_may_be_used(judge: Judge, text: str, others: tuple[str, ...]) -> None:
    assert judge(RULE, program(text, *others)) == []


def test_silent_for_another_function_with_this_name(judge: Judge) -> None:
    assert judge(RULE, program("order = x.argsort()", "y = order[:k]", function="g")) == []


def test_silent_without_sorts(judge: Judge) -> None:
    assert judge(RULE, program("best = x.sort().indices[:, 0]", sort="gemm")) == ()


def test_abstains_without_text(judge: Judge) -> None:
    assert isinstance(judge(RULE, program(None)), Abstain)
