# SPDX-License-Identifier: Apache-2.0
"""How a table fits a screen: texts get narrower, paths lose folders on the left, then columns are left out.

A number is never cut. On a screen too narrow for the columns that always stay, lines are longer than it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from profiling_lab.records import dataclass
from profiling_lab.report.cells import ALWAYS, Column, Unit
from profiling_lab.report.screen.cells import cell_len, set_cell_size

_GAP, _NARROW_GAP = 2, 1
_LEAST_TEXT = 16
_WORD = re.compile(r"\s*\S*\d (?:%|[mµun]?s|[KMG]?i?B|GB/s)(?!\w)|\s*\S+")
"""a number and its unit are one word"""
_LEAST_WORD, _LEAST_PATH = 20, 40
"""a text column is at least as wide as its longest word or file name, up to this"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are shown, by number, and their widths; and the titles of those left out."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    gap: int
    left_out: tuple[str, ...] = ()


def natural(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> Layout:
    """As wide as the values are."""
    widths = tuple(_longest((title, *(row[i] for row in cells))) for i, title in enumerate(titles))
    return Layout(tuple(range(len(titles))), widths, _GAP)


def fitted(
    columns: Sequence[Column], titles: Sequence[str], cells: Sequence[Sequence[str]], width: int, mark: str
) -> Layout:
    """For a screen of this width. mark: stands for the folders that a path has lost.

    Columns of the highest `priority` go first, of several the last; the first column always stays.
    """
    whole = natural(titles, cells)
    if sum(whole.widths) + _GAP * (len(whole.shown) - 1) <= width:
        return whole
    least = [
        _least(column, title, [row[i] for row in cells], mark)
        for i, (column, title) in enumerate(zip(columns, titles, strict=True))
    ]
    shown, gap = list(whole.shown), _GAP
    out: list[int] = []

    def spare() -> int:
        return width - sum(least[i] for i in shown) - gap * (len(shown) - 1)

    may_go = [i for i in shown[1:] if columns[i].priority > ALWAYS]
    for i in sorted(may_go, key=lambda i: (columns[i].priority, i), reverse=True):
        if spare() < 0:
            shown.remove(i)
            out.append(i)
    # The last one to go may have made room for others that matter as much.
    for i in reversed(out[:-1]):
        if columns[i].priority == columns[out[-1]].priority and least[i] + gap <= spare():
            shown = sorted((*shown, i))
    out = [i for i in out if i not in shown]
    if spare() < 0:
        gap = _NARROW_GAP
    widths = dict(zip(shown, (least[i] for i in shown), strict=True))
    # Values first, the ones that need the least before the others: they fold on every row, titles only once.
    # What may be cut takes the rest.
    for turn in ("text", "number", "cut"):
        mine = [i for i in shown if _turn(columns[i]) == turn]
        left = max(0, width - sum(widths.values()) - gap * (len(shown) - 1))
        for done, i in enumerate(sorted(mine, key=lambda i: whole.widths[i] - widths[i])):
            more = min(whole.widths[i] - widths[i], left // (len(mine) - done))
            widths[i] += more
            left -= more
    return Layout(tuple(shown), tuple(widths[i] for i in shown), gap, tuple(titles[i] for i in sorted(out)))


def _turn(column: Column) -> str:
    if column.may_be_cut:
        return "cut"
    return "text" if column.unit is Unit.TEXT else "number"


def spans(text: str, width: int, indent: int = 0) -> list[tuple[int, int]]:
    """Where to fold a text: between words, and words that are too long anywhere but inside of a number.

    indent: by how much lines behind the first are narrower.
    """
    lines: list[tuple[int, int]] = []
    start = end = 0
    room = width
    for word in _WORD.finditer(text):
        if cell_len(text[start : word.end()]) <= room:
            end = word.end()
            continue
        if end > start:
            lines.append((start, end))
            room = width - indent
            start = end + len(word[0]) - len(word[0].lstrip())
        while cell_len(text[start : word.end()]) > room:
            cut = _cut(text, start, word.end(), room)
            if cut == word.end():
                break
            lines.append((start, cut))
            room = width - indent
            start = cut
        end = word.end()
    return [*lines, (start, end)] if end > start or not lines else lines


def shortened(text: str, width: int, mark: str) -> str:
    """A path with as many of its last folders as fit: `…/models/net.py:30 forward`; its file always stays.

    Words before it, as of `before src/net.py:30`, stay too.
    """
    if cell_len(text) <= width or "/" not in text:
        return text
    first, last = text.index("/"), text.rindex("/")
    begin = max(text.rfind(" ", 0, first), text.rfind("(", 0, first)) + 1
    before, folders, file = text[:begin], text[begin:last].split("/"), text[last + 1 :]
    for kept in range(len(folders) - 1, 0, -1):
        short = f"{before}{mark}/{'/'.join(folders[-kept:])}/{file}"
        if cell_len(short) <= width:
            return short
    return f"{before}{mark}/{file}"


def cut(text: str, width: int, mark: str) -> str:
    """The beginning of a text that is too long."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - cell_len(mark)).rstrip() + mark


def _least(column: Column, title: str, cells: Sequence[str], mark: str) -> int:
    of_title = _longest(title.split())
    if column.unit is not Unit.TEXT:
        return max(_longest(cells), of_title)
    if column.may_be_cut:
        return max(min(_longest(cells), _LEAST_TEXT), of_title)
    if column.is_path:
        cells = [shortened(cell, 0, mark) for cell in cells]
    word = min(_longest(_words(cells)), _LEAST_PATH if column.is_path else _LEAST_WORD)
    return max(min(_longest(cells), _LEAST_TEXT), word, of_title)


def _words(cells: Sequence[str]) -> list[str]:
    return [word for cell in cells for word in re.findall(r"^\s*\S+|\S+", cell)]


def _longest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _cut(text: str, start: int, end: int, room: int) -> int:
    """Where a word that is too long is folded; behind it all if it is one number."""
    at = start + 1
    while at < end and cell_len(text[start : at + 1]) <= room:
        at += 1
    back = at
    while back > start and text[back - 1].isdigit() and text[back : back + 1].isdigit():
        back -= 1
    if back > start:
        return back
    while at < end and text[at].isdigit():
        at += 1
    return at
