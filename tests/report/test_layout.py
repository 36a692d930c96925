# SPDX-License-Identifier: Apache-2.0
"""Where texts fold, how paths get shorter, and which columns go."""

from __future__ import annotations

import re

import pytest

from profiling_lab.report.cells import ALWAYS, FIRST_TO_GO, SPARE, USUAL, Column, Unit
from profiling_lab.report.screen.layout import fitted, shortened, spans


def folded(text: str, width: int) -> list[str]:
    return [text[start:end] for start, end in spans(text, width)]


@pytest.mark.parametrize("width", range(1, 40))
def test_a_number_is_never_folded(width: int) -> None:
    text = "took 12,345.678 ms at model.py:123456, size128x64_1000000000tail 99.5 %"
    lines = folded(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split()), "nothing is lost"
    whole = set(re.findall(r"\d+", text))
    assert {number for line in lines for number in re.findall(r"\d+", line)} <= whole


def test_a_number_keeps_its_unit() -> None:
    assert folded("it took 12 ms of 99.5 % and 3.0 MiB", 10) == [
        "it took",
        "12 ms of",
        "99.5 % and",
        "3.0 MiB",
    ]


def test_folding_keeps_indentation_and_wide_letters_count_twice() -> None:
    assert folded("  node one", 7) == ["  node", "one"]
    assert folded("\u6838\u6838\u6838\u6838", 4) == ["\u6838\u6838", "\u6838\u6838"]
    assert folded("", 10) == [""]


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("src/models/net.py:30 forward", 40, "src/models/net.py:30 forward"),
        ("src/models/net.py:30 forward", 26, "…/models/net.py:30 forward"),
        ("src/models/net.py:30 forward", 20, "…/net.py:30 forward"),
        ("src/models/net.py:30 forward", 1, "…/net.py:30 forward"),
        ("before a/b/c.py:1", 15, "before …/c.py:1"),
        ("forward (src/models/net.py)", 20, "forward (…/net.py)"),
        ("    a/b/c.py:1", 10, "    …/c.py:1"),
        ("no path at all", 4, "no path at all"),
    ],
)
def test_a_path_loses_folders_on_the_left_and_keeps_its_file(text: str, width: int, short: str) -> None:
    assert shortened(text, width, "…") == short


COLUMNS = (
    Column("key", "line", priority=FIRST_TO_GO),  # the first column stays whatever it says
    Column("total", "total", Unit.NS, priority=ALWAYS),
    Column("a", "a", Unit.COUNT, priority=USUAL),
    Column("b", "bbbbb", Unit.COUNT, priority=SPARE),
    Column("c", "c", Unit.COUNT, priority=SPARE),
    Column("d", "d", Unit.COUNT, priority=FIRST_TO_GO),
)
ROW = ("main.py:1", "1000", "1000", "10", "10", "10")


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (37, ()),
        (36, ("d",)),
        (32, ("c", "d")),
        (28, ("bbbbb", "d")),  # c has room again once bbbbb is gone
        (25, ("bbbbb", "c", "d")),
        (5, ("a", "bbbbb", "c", "d")),
    ],
)
def test_columns_go_by_priority_and_of_several_the_last(width: int, left_out: tuple[str, ...]) -> None:
    layout = fitted(COLUMNS, [column.title for column in COLUMNS], [ROW], width, "…")
    assert layout.left_out == left_out
    assert layout.shown[:2] == (0, 1), "the first column and the total stay"
    assert all(w >= len(ROW[i]) for i, w in zip(layout.shown, layout.widths, strict=True))
    if width > 20:
        assert sum(layout.widths) + layout.gap * (len(layout.widths) - 1) <= width
