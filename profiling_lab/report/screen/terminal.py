# SPDX-License-Identifier: Apache-2.0
"""Text for people. In a pipe or file it is as wide as it needs, because the reader has no other way to see
the rest; on a terminal it fits its width (COLUMNS, where it is set) and has colours, unless NO_COLOR is set.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from profiling_lab.report.cells import Column, Report, Table, Unit, footer, titles_and_cells
from profiling_lab.report.screen.cells import cell_len
from profiling_lab.report.screen.encoding import can_hold, held_by
from profiling_lab.report.screen.layout import Layout, cut, fitted, natural, shortened, spans

if TYPE_CHECKING:
    from rich.text import Text

EMPHASIS = (
    (r"^(?:Conclusion: |FASTER: |NO CHANGE: |WITHIN THE NOISE: ).*", "bold green"),
    (r"^(?:SLOWER: |NOT COMPARABLE: |NO VERDICT: ).*", "bold red"),
    (r"(?:[\w.@+-]*/)*[\w.]+\.py:[\w.()]+(?: line \d+)?", "cyan"),
    (r"\b\d+\.\d+ %", "bold yellow"),
    (r"^(?:Recorded|Cost|Next):", "bold"),
    (r"^(?:Top CUDA kernels|GPU time by line).*", "bold"),
)
_DETAIL = "  "
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def write_text(report: Report, stream: TextIO) -> None:
    """The report as text; what it would take to see columns that were left out is said below the table."""
    width = width_of(stream)
    _print(stream, report.header, width)
    if report.header and report.table.rows:
        _print(stream, [""], width)
    left_out: tuple[str, ...] = ()
    if report.table.rows:
        left_out = _write_table(report.table, stream, width)
    notes = [footer(report.table)]
    if left_out:
        more = (
            "a wider terminal or --format csv shows more" if report.has_csv else "a wider terminal shows more"
        )
        notes.append(f"left out at {width} columns: {', '.join(left_out)}; {more}")
    if notes := [note for note in notes if note]:
        _print(stream, ["", *notes], width, "dim")
    if report.below:
        _print(stream, ["", *report.below], width)


def say(stream: TextIO, lines: Iterable[str]) -> None:
    """Print lines; on a terminal folded, with colours for what the eye should find first."""
    _print(stream, lines, width_of(stream))


def emphasised(line: str) -> Text:
    """A line as a terminal shows it."""
    from rich.text import Text

    text = Text(line)
    for pattern, style in EMPHASIS:
        text.highlight_regex(pattern, style)
    return text


def width_of(stream: TextIO) -> int | None:
    """Of a terminal; None for anything else."""
    if not stream.isatty():
        return None
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # a stream of its own that calls itself a terminal
        return 80


def _write_table(table: Table, stream: TextIO, width: int | None) -> tuple[str, ...]:
    """Rows, and below each its details over the whole width; returns the titles of columns left out."""
    titles, cells = titles_and_cells(table)
    cells = [[_visible(cell) for cell in row] for row in cells]
    mark = "…" if can_hold(stream, "…") else "..."
    layout = natural(titles, cells)
    if width is not None:
        layout = fitted(table.columns, titles, cells, width, mark)
    _print(stream, _row_lines(table.columns, layout, titles, mark, is_title=True), None, "bold")
    for number, row in enumerate(cells):
        _print(stream, _row_lines(table.columns, layout, row, mark), None, "none")
        details = table.details[number] if number < len(table.details) else ()
        if width is not None:
            details = tuple(_short_words(line, width - len(_DETAIL), mark) for line in details)
        _print(stream, (f"{_DETAIL}{line}" for line in details), width, "dim")
    return layout.left_out


def _row_lines(
    columns: Sequence[Column], layout: Layout, row: Sequence[str], mark: str, is_title: bool = False
) -> Iterator[str]:
    """The lines of a row; titles stand on its last ones."""
    folded = []
    for i, width in zip(layout.shown, layout.widths, strict=True):
        text = row[i]
        if not is_title and columns[i].is_path:
            text = shortened(text, width, mark)
        elif not is_title and columns[i].may_be_cut:
            text = cut(text, width, mark)
        folded.append(_folded(text, width))
    if is_title:
        most = max(map(len, folded))
        folded = [[""] * (most - len(lines)) + lines for lines in folded]
    for parts in zip_longest(*folded, fillvalue=""):
        line = (" " * layout.gap).join(
            _padded(part, width, left=columns[i].unit is Unit.TEXT)
            for part, i, width in zip(parts, layout.shown, layout.widths, strict=True)
        )
        yield line.rstrip()


def _folded(text: str, width: int) -> list[str]:
    """Lines of a width; those behind the first are indented as it is."""
    indent = _indent(text, width)
    first, *rest = (text[start:end] for start, end in spans(text, width, indent))
    return [first, *(" " * indent + line for line in rest)]


def _indent(text: str, width: int) -> int:
    return min(len(text) - len(text.lstrip()), width // 2)


def _padded(text: str, width: int, left: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return text + blanks if left else blanks + text


def _short_words(line: str, width: int, mark: str) -> str:
    """A path that is longer than the screen loses folders."""
    return " ".join(shortened(word, width, mark) for word in line.split(" "))


def _visible(text: str) -> str:
    """Names come from files: nothing in them may move the cursor or change a terminal's settings."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _print(stream: TextIO, lines: Iterable[str], width: int | None, style: str = "") -> None:
    """Print lines, folded at a width, and what is folded keeps its indentation. style: instead of colours."""
    lines = [_visible(line) for line in lines]
    if not stream.isatty():
        stream.write(held_by(stream, "".join(f"{line.rstrip()}\n" for line in lines)))
        return
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        force_terminal=True,
        force_jupyter=False,  # in a notebook rich shows what is meant for `stream`
        highlight=False,
        emoji=False,
    )
    for line in lines:
        line = held_by(stream, line.rstrip())
        text = Text(line, style) if style else emphasised(line)
        indent = _indent(line, width or 0)
        for number, (start, end) in enumerate(spans(line, width, indent) if width else [(0, len(line))]):
            part = text[start:end]
            console.print(Text(" " * indent) + part if number else part, soft_wrap=True)
    stream.write(out.getvalue())
