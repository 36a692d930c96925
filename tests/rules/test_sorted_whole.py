# SPDX-License-Identifier: Apache-2.0
"""Sorts of which a part of the order is used, of the same again, and of rows"""

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


SELECT = ("sort_postprocess", SORT, "lerp")


def levels(*texts: str, times: int = 1) -> TraceBuilder:
    """Steps in which each line sorts, `times` often."""
    builder = TraceBuilder()
    for number, text in enumerate(texts, 1):
        builder.source(FILE, number, text)
    for _ in range(6):
        builder.launch("gemm", 20 * US, stack=f"{FILE}:20 main")
        for number in range(1, len(texts) + 1):
            for _ in range(times):
                for kernel in SELECT:
                    builder.launch(kernel, 20 * US, stack=f"{FILE}:{number} f")
    return builder


@pytest.mark.parametrize(
    "text",
    [
        "rows = [torch.quantile(x, level, dim=0) for level in LEVELS]",
        "rows = {level: x.float().quantile(level) for level in LEVELS}",
        "return torch.stack([x.abs()[:, 0].nanquantile(q, 1) for q in (0.1, 0.9)])",
    ],
)
def test_fires_on_a_sort_for_each_quantile(judge: Judge, text: str) -> None:
    (finding,) = judge(RULE, levels(text, times=4))
    assert finding.cost_ns == 6 * 4 * 3 * 20 * US and "sorted 4 times" in finding.what
    assert set(finding.saving.left) == {0.25} and set(finding.saving.launches_left) == {0.25}
    assert "takes a tensor of all levels" in finding.remedy


@pytest.mark.parametrize(
    "text",
    [
        "rows = [torch.quantile(x, 0.5) for x in parts]",
        "rows = [torch.quantile(x[i], 0.5) for i in range(4)]",
        "rows = [level for level in torch.quantile(x, levels)]",
        "rows = torch.quantile(x, level)",
    ],
)
def test_silent_about_a_sort_of_something_else_each_time(judge: Judge, text: str) -> None:
    assert judge(RULE, levels(text, times=4)) == []


def test_silent_where_the_comprehension_has_one_pass(judge: Judge) -> None:
    text = "rows = [torch.quantile(x, level) for level in LEVELS]"
    assert judge(RULE, levels(text, times=1)) == []


TWICE = ("low = torch.quantile(x, 0.1, dim=1)", "high = torch.quantile(x, 0.9, dim=1)")


def test_fires_on_the_same_at_two_lines(judge: Judge) -> None:
    (finding,) = judge(RULE, levels(*TWICE))
    assert finding.place is not None and finding.place.line == 1
    assert finding.cost_ns == 6 * 3 * 20 * US and set(finding.saving.left) == {0.0}


@pytest.mark.parametrize(
    "texts",
    [
        ("low = torch.quantile(x, 0.1, dim=1)", "high = torch.quantile(y, 0.9, dim=1)"),
        ("low = torch.quantile(x, 0.1, dim=1)", "high = torch.quantile(x, 0.9, dim=0)"),
        ("low = x.quantile(0.1, 1)", "high = x.quantile(0.9, 0)"),
        ("x = x - x.quantile(0.1)", "high = x.quantile(0.9)"),
        ("x -= x.quantile(0.1)", "high = x.quantile(0.9)"),
        ("x.clamp_(max=x.quantile(0.9))", "high = x.quantile(0.1)"),
        ("x[x > x.quantile(0.9)] = 0", "high = x.quantile(0.1)"),
    ],
)
def test_silent_where_two_lines_sort_something_else(judge: Judge, texts: tuple[str, str]) -> None:
    assert judge(RULE, levels(*texts)) == []


def test_silent_about_branches(judge: Judge) -> None:
    builder = TraceBuilder().source(FILE, 1, TWICE[0]).source(FILE, 2, TWICE[1])
    for step in range(12):
        builder.launch("gemm", 20 * US, stack=f"{FILE}:20 main").launch("add", US, stack=f"{FILE}:21 main")
        builder.launch(SORT, 20 * US, stack=f"{FILE}:{1 + (step in (1, 2, 6, 7, 8))} f")
    assert judge(RULE, builder) == []


UNIQUE = (
    "void cub::detail::merge_sort::DeviceMergeSortMergeKernel<long*, at::native::(anonymous namespace)::"
    "unique_dim_cuda_template<{}>(at::Tensor const&, long, bool)::{{lambda(long, long)#1}}>(bool)"
)


def test_fires_on_rows_that_are_compared(judge: Judge) -> None:
    """The kernel's name tells it, without the text of the line."""
    (finding,) = judge(RULE, program(None, sort=UNIQUE.format("long")))
    assert finding.cost_ns == 4 * 70 * US and set(finding.saving.left) == {0.2}
    assert "one number of each row" in finding.remedy and finding.place.line == 1


def test_silent_about_rows_of_floats(judge: Judge) -> None:
    assert judge(RULE, program("boxes = places.unique(dim=0)", sort=UNIQUE.format("float"))) == []
