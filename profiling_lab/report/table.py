# SPDX-License-Identifier: Apache-2.0
"""One table, four forms: text for a terminal, markdown, CSV, and JSON in a versioned envelope."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, TextIO

import msgspec

from profiling_lab.report import numbers
from profiling_lab.report.json_text import encode

SCHEMA = "profiling-lab/1"
FORMATS = ("table", "json", "csv", "md")

Value = str | int | float | None


class Unit(Enum):
    """What the values of a column are; it decides how people see them and how they are aligned."""

    TEXT = "text"
    COUNT = "count"
    NS = "ns"
    BYTES = "bytes"
    FRAC = "frac"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class Column:
    """`name` is the stable key of JSON and CSV (with its unit: `gpu_ns`), `title` what people read.

    Columns of one `scale` are shown in the same unit of time, because people compare them. On a terminal a
    column that `may_be_cut` gets the room that the others leave.
    """

    name: str
    title: str
    unit: Unit = Unit.TEXT
    scale: str = ""
    may_be_cut: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in order, each with one value per column. None is unknown and shows as `-`; it is never 0.

    `details` are lines under a row, for people only; in Markdown they are in the cell of the column
    `details_in`, without it in that of the first text. `data` is what JSON holds instead of a row, and
    `data_columns` names and units of its values.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    total_matched: int
    details: tuple[tuple[str, ...], ...] = ()
    data: tuple[dict[str, Any], ...] | None = None
    details_in: str = ""
    data_columns: tuple[Column, ...] = ()

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


@dataclass(frozen=True, slots=True)
class Report:
    """What a command prints: its headline and coverage, and its table."""

    command: str
    trace: dict[str, Any]
    header: tuple[str, ...]
    table: Table
    coverage: dict[str, Any]
    summary: dict[str, Any] | None = None
    """what the table as a whole says, where that is more than its rows"""


def write(report: Report, form: str, stream: TextIO | None = None) -> None:
    """Print a report in one of FORMATS on `stream` (default: standard output)."""
    writers: dict[str, Callable[[Report, TextIO], None]] = {
        "table": _write_text,
        "json": _write_json,
        "csv": _write_csv,
        "md": _write_markdown,
    }
    writers[form](report, stream or sys.stdout)


def titles_and_cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Titles with the unit of their column, and every value as people read it."""
    times: dict[str, list[int]] = {}
    for i, column in enumerate(table.columns):
        if column.unit is Unit.NS:
            times.setdefault(column.scale, []).extend(int(row[i] or 0) for row in table.rows)
    titles: list[str] = []
    shown: list[list[str]] = []
    for i, column in enumerate(table.columns):
        cell = _CELLS.get(column.unit, str)
        title = column.title
        if column.unit is Unit.NS:
            unit, size = numbers.time_unit(times[column.scale])
            cell, title = partial(numbers.in_unit, size=size), f"{title} {unit}"
        titles.append(title)
        shown.append(["-" if row[i] is None else cell(row[i]) for row in table.rows])
    return titles, [list(row) for row in zip(*shown, strict=True)] if shown else []


_CELLS: dict[Unit, Callable[[Any], str]] = {
    Unit.COUNT: numbers.count,
    Unit.BYTES: numbers.size,
    Unit.FRAC: numbers.share,
    Unit.RATE: numbers.rate,
}


_ROW = "row"
_ANY_WIDTH = 100_000  # wider than any table
_LEAST_TEXT = 16


def _footer(table: Table) -> str:
    if not table.truncated:
        return ""
    return f"{len(table.rows)} of {table.total_matched} rows; --limit 0 shows all"


def _write_text(report: Report, stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    # In a pipe nothing is cut: the reader has no other way to see the rest. On a terminal rich honours
    # COLUMNS.
    on_terminal = stream.isatty()
    text = io.StringIO()
    console = Console(
        file=stream if on_terminal else text,
        width=None if on_terminal else _ANY_WIDTH,
        highlight=False,
        emoji=False,
        force_jupyter=False,  # in a notebook rich shows what is meant for `stream`
    )
    for line in report.header:
        console.print(Text(line))
    if report.header and report.table.rows:
        console.print()
    if report.table.rows:
        fitting = _cut(report.table, console.width) if on_terminal else report.table
        _print_table(console, fitting, fold=on_terminal)
    if footer := _footer(report.table):
        console.print(Text(f"\n{footer}", style="dim"))
    # Cells are padded to the width of their column; behind the last one that is nothing but noise in a file.
    stream.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def _cut(table: Table, width: int) -> Table:
    """The table with its last column cut to the width of the terminal, or without it if there is no room."""
    if not table.columns[-1].may_be_cut:
        return table
    from rich.cells import cell_len
    from rich.text import Text

    titles, cells = titles_and_cells(table)
    others = [
        max(map(cell_len, column)) for column in zip(titles[:-1], *(row[:-1] for row in cells), strict=True)
    ]
    room = width - sum(others) - 2 * len(others) - 1
    if room < _LEAST_TEXT:
        rows = tuple(row[:-1] for row in table.rows)
        return replace(table, columns=table.columns[:-1], rows=rows)
    texts = [Text(row[-1]) for row in cells]
    for text in texts:
        text.truncate(room, overflow="ellipsis")
    rows = tuple((*row[:-1], text.plain) for row, text in zip(table.rows, texts, strict=True))
    return replace(table, rows=rows)


def _print_table(console: Any, table: Table, fold: bool) -> None:
    """Print the rows, and below each its details over the whole width: in a column they would widen it, or
    be folded to bits in it.
    """
    from rich.padding import Padding
    from rich.segment import Segment, Segments
    from rich.text import Text

    def below(row: int) -> None:
        for line in table.details[row] if 0 <= row < len(table.details) else ():
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))

    rich_table = _rich_table(table, fold)
    # A terminal that is too narrow for the numbers breaks lines, as it does anywhere else.
    # Two cells between columns, and one that rich keeps behind the last.
    needed = sum(column.min_width or 0 for column in rich_table.columns) + 2 * len(rich_table.columns) + 1
    options = console.options.update(width=max(console.width, needed))
    row = -1
    for line in console.render_lines(rich_table, options, pad=False):
        number = max((part.style.meta.get(_ROW, -1) for part in line if part.style), default=-1)
        if number > row:
            below(row)
            row = number
        console.print(Segments([*line, Segment.line()]), end="", crop=False)
    below(row)


def _rich_table(table: Table, fold: bool) -> Any:
    """The rows without their details. Every cell carries the number of its row: a row may have many lines."""
    from rich.style import Style
    from rich.table import Table as RichTable
    from rich.text import Text

    titles, cells = titles_and_cells(table)
    out = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, (column, title) in enumerate(zip(table.columns, titles, strict=True)):
        is_text = column.unit is Unit.TEXT
        longest = max((len(row[number]) for row in cells), default=0)
        # Titles fold between words and names anywhere; of a number nothing may be lost.
        least = min(longest, _LEAST_TEXT) if is_text else max(longest, *map(len, title.split() or [""]))
        out.add_column(
            Text(title),
            justify="left" if is_text else "right",
            no_wrap=not fold,
            overflow="fold",
            min_width=least if fold else None,
        )
    for number, row in enumerate(cells):
        style = Style(meta={_ROW: number})
        out.add_row(*(Text(cell, style=style) for cell in row))
    return out


def _write_markdown(report: Report, stream: TextIO) -> None:
    titles, cells = titles_and_cells(report.table)
    in_list = False
    for line in report.header:
        was_in_list, in_list = in_list, line.startswith(" ")
        if was_in_list and not in_list:  # without a blank line it would belong to the item above
            stream.write("\n")
        stream.write(f"- {_markdown(line.strip())}\n" if in_list else f"{_markdown(line)}\n\n")
    if in_list:
        stream.write("\n")
    if cells:
        stream.write("| " + " | ".join(map(_markdown, titles)) + " |\n")
        marks = ["---" if column.unit is Unit.TEXT else "---:" for column in report.table.columns]
        stream.write("| " + " | ".join(marks) + " |\n")
        details = report.table.details or ((),) * len(cells)
        columns = report.table.columns
        at = next((i for i, column in enumerate(columns) if column.unit is Unit.TEXT), 0)
        at = next((i for i, column in enumerate(columns) if column.name == report.table.details_in), at)
        for row, below in zip(cells, details, strict=True):
            shown = [_markdown(cell) for cell in row]
            shown[at] = "<br>".join([shown[at], *(_markdown(line) for line in below)])
            stream.write("| " + " | ".join(shown) + " |\n")
    if footer := _footer(report.table):
        stream.write(f"\n{footer}\n")


def _markdown(text: str) -> str:
    nested = len(text) - len(text.lstrip(" "))  # Markdown swallows common spaces
    text = "\u00a0" * nested + text[nested:]
    for mark in "\\|<>*_`":
        text = text.replace(mark, {"<": "&lt;", ">": "&gt;"}.get(mark, f"\\{mark}"))
    return text


def _data(table: Table) -> tuple[dict[str, Any], ...]:
    """Rows for machines: under stable names, as they are, not as people read them."""
    if table.data is not None:
        return table.data
    names = [column.name for column in table.columns]
    return tuple(dict(zip(names, row, strict=True)) for row in table.rows)


def _write_csv(report: Report, stream: TextIO) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    rows = _data(report.table)
    nested = {name for row in rows for name, value in row.items() if isinstance(value, list | tuple | dict)}
    names = [
        name for name in (rows[0] if rows else (c.name for c in report.table.columns)) if name not in nested
    ]
    writer.writerow(names)
    writer.writerows(["" if row[name] is None else row[name] for name in names] for row in rows)
    stream.write(buffer.getvalue())


def _write_json(report: Report, stream: TextIO) -> None:
    table = report.table
    envelope = {
        "schema": SCHEMA,
        "command": report.command,
        "trace": report.trace,
        "data": {
            "rows": list(_data(table)),
            "total_matched": table.total_matched,
            "truncated": table.truncated,
        }
        | ({} if report.summary is None else {"summary": report.summary}),
        "coverage": report.coverage,
    }
    stream.write(msgspec.json.format(encode(envelope), indent=2).decode() + "\n")
