# SPDX-License-Identifier: Apache-2.0
"""One table, four forms: text for a terminal, markdown, CSV, and JSON in a versioned envelope."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from profiling_lab.report.cells import (
    ALWAYS,
    FIRST_TO_GO,
    SPARE,
    USUAL,
    Column,
    Report,
    Table,
    Unit,
    Value,
    footer,
    titles_and_cells,
)
from profiling_lab.report.json_text import encode, indented
from profiling_lab.report.screen.encoding import held_by, held_json

SCHEMA = "profiling-lab/1"
FORMATS = ("table", "json", "csv", "md")
__all__ = [
    "ALWAYS", "FIRST_TO_GO", "FORMATS", "SCHEMA", "SPARE", "USUAL",
    "Column", "Report", "Table", "Unit", "Value", "write",
]  # fmt: skip


def write(report: Report, form: str, stream: TextIO | None = None) -> None:
    """Print a report in one of FORMATS on `stream` (default: standard output)."""
    writers: dict[str, Callable[[Report, TextIO], None]] = {
        "table": _write_text,
        "json": _write_json,
        "csv": _write_csv,
        "md": _write_markdown,
    }
    writers[form](report, stream or sys.stdout)


def _write_text(report: Report, stream: TextIO) -> None:
    from profiling_lab.report.screen.terminal import write_text  # it needs rich, the other forms do not

    write_text(report, stream)


def _write_markdown(report: Report, to: TextIO) -> None:
    stream = io.StringIO()
    titles, cells = titles_and_cells(report.table)
    _write_paragraphs(report.header, stream)
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
    if report.below:
        stream.write("\n" if cells else "")
        _write_paragraphs(report.below, stream)
    to.write(held_by(to, stream.getvalue()))


def _write_paragraphs(lines: Sequence[str], stream: TextIO) -> None:
    """Lines as paragraphs, indented ones as lists."""
    in_list = False
    for line in lines:
        was_in_list, in_list = in_list, line.startswith(" ")
        if was_in_list and not in_list:  # without a blank line it would belong to the item above
            stream.write("\n")
        stream.write(f"- {_markdown(line.strip())}\n" if in_list else f"{_markdown(line)}\n\n")
    if in_list:
        stream.write("\n")


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
    import csv

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
    text = indented(encode(envelope))
    stream.write(f"{held_json(stream, text)}\n")
