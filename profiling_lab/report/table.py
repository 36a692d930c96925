# SPDX-License-Identifier: Apache-2.0
"""One table, four forms: text for a terminal, markdown, CSV, and JSON in a versioned envelope."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TextIO

import msgspec

from profiling_lab.report import numbers
from profiling_lab.report.encoding import held_by, held_json
from profiling_lab.report.json_text import encode

SCHEMA = "profiling-lab/1"
FORMATS = ("table", "json", "csv", "md")

ALWAYS, USUAL, SPARE, FIRST_TO_GO = range(4)
"""priorities of columns: which a narrow screen always keeps, and which it leaves out first"""

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

    Columns of one `scale` are shown in the same unit of time, because people compare them. On a screen that
    is too narrow columns of the highest `priority` go first, and texts of `is_path` lose folders on the left.
    """

    name: str
    title: str
    unit: Unit = Unit.TEXT
    scale: str = ""
    priority: int = USUAL
    is_path: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in order, each with one value per column. None is unknown and shows as `-`; it is never 0.

    `details` are lines under a row, for people only; in Markdown they are in the cell of the column
    `details_in`, without it in that of the first text. `data` is what JSON holds instead of a row.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    total_matched: int
    details: tuple[tuple[str, ...], ...] = ()
    data: tuple[dict[str, Any], ...] | None = None
    details_in: str = ""

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
    has_csv: bool = True
    """False where the command has no --format csv"""


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


def footer(table: Table) -> str:
    if not table.truncated:
        return ""
    return f"{len(table.rows)} of {table.total_matched} rows; --limit 0 shows all"


def _write_text(report: Report, stream: TextIO) -> None:
    from profiling_lab.report.terminal import write_text  # it lays out what is declared here

    write_text(report, stream)


def _write_markdown(report: Report, to: TextIO) -> None:
    stream = io.StringIO()
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
    if cut := footer(report.table):
        stream.write(f"\n{cut}\n")
    to.write(held_by(to, stream.getvalue()))


def _markdown(text: str) -> str:
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
    stream.write(held_by(stream, buffer.getvalue()))


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
    text = msgspec.json.format(encode(envelope), indent=2).decode()
    stream.write(f"{held_json(stream, text)}\n")
