# SPDX-License-Identifier: Apache-2.0
"""What a command prints before it has a form: header, columns, rows, and values as people read them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from profiling_lab.records import dataclass
from profiling_lab.report import numbers

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
    is too narrow columns of the highest `priority` go first, texts of `is_path` lose folders on the left, and
    those of `may_be_cut` their end.
    """

    name: str
    title: str
    unit: Unit = Unit.TEXT
    scale: str = ""
    priority: int = USUAL
    is_path: bool = False
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
    has_csv: bool = True
    """False where the command has no --format csv"""
    below: tuple[str, ...] = ()
    """lines below the table: what limits it"""


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
