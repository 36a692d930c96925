# SPDX-License-Identifier: Apache-2.0
"""A report as a piece of HTML for a notebook: its header and its table, without script and style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from profiling_lab.report.cells import Report, Unit, titles_and_cells
from profiling_lab.report.json_text import readable


def html_table(report: Report, footer: str = "") -> str:
    """What the terminal shows, with a footer. Texts of the trace are escaped: they are never markup."""
    return "\n".join(
        [
            "<div>",
            *_lines(report.header),
            *_rows(report),
            *_lines([*report.below, *([footer] if footer else [])]),
            "</div>",
        ]
    )


def _lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f'<div style="white-space: pre-wrap">{_text(line)}</div>'


def _rows(report: Report) -> Iterator[str]:
    table = report.table
    if not table.rows:
        return
    titles, cells = titles_and_cells(table)
    sides = ["left" if column.unit is Unit.TEXT else "right" for column in table.columns]
    yield "<table>"
    heads = (
        f'<th style="text-align: {side}">{_text(title)}</th>'
        for side, title in zip(sides, titles, strict=True)
    )
    yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    for row, below in zip(cells, table.details or [()] * len(cells), strict=True):
        shown = (
            f'<td style="text-align: {side}; white-space: pre-wrap">{_text(cell)}</td>'
            for side, cell in zip(sides, row, strict=True)
        )
        yield f"<tr>{''.join(shown)}</tr>"
        if below:
            lines = "\n".join(map(_text, below))
            yield (
                f'<tr><td colspan="{len(row)}" style="text-align: left; white-space: pre-wrap; opacity: 0.7; '
                f'padding-left: 2em">{lines}</td></tr>'
            )
    yield "</tbody>"
    yield "</table>"


def _text(text: str) -> str:
    from html import escape

    return escape(readable(text))
