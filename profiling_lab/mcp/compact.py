# SPDX-License-Identifier: Apache-2.0
"""A report in few tokens: no padding, the first rows first, and a line about what was left out."""

from __future__ import annotations

from profiling_lab.errors import UsageError
from profiling_lab.report.cells import Report, titles_and_cells

USUAL_TOKENS = 2000
FEWEST_TOKENS = 200
_CHARACTERS = 3
"""of a token, at least: paths and numbers have shorter tokens than English, which has four"""
_NOTE = 240
"""characters that are kept for the line about what was left out"""


def compact(report: Report, tokens: int) -> str:
    """The header, and as many rows as fit, each with the lines below it where these fit too.

    Raises UsageError for a budget that holds no row.
    """
    if tokens < FEWEST_TOKENS:
        raise UsageError(f"tokens must be at least {FEWEST_TOKENS}, not {tokens}")
    left = tokens * _CHARACTERS - _NOTE
    titles, cells = titles_and_cells(report.table)
    header, left_out = _that_fit([line.rstrip() for line in report.header], left // 2)
    lines = list(header)
    out = [f"{left_out} lines of the header"] if left_out else []
    left -= sum(len(line) + 1 for line in lines)
    if cells:
        lines.append(" | ".join(titles))
        left -= len(lines[-1]) + 1
    details = report.table.details or ((),) * len(cells)
    shown = without = 0
    for row, below in zip(cells, details, strict=True):
        text, more = " | ".join(row), [f"  {line.strip()}" for line in below]
        whole = len(text) + 1 + sum(len(line) + 1 for line in more)
        if len(text) + 1 > left:
            break
        if whole > left:
            more, without = [], without + 1
        lines += [text, *more]
        left -= len(text) + 1 + sum(len(line) + 1 for line in more)
        shown += 1
    total = report.table.total_matched
    if shown < total:
        rows = f"rows {shown + 1} to {total}" if shown else f"all {total} rows"
        out.append(f"{rows}, the last ones" if shown else rows)
    if without:
        out.append(f"the details of {without} rows")
    below_it, left_out = _that_fit(report.below, left)
    lines += below_it
    out += [f"{left_out} lines below the table"] if left_out else []
    if out:
        lines.append(f"left out to keep to {tokens} tokens: {'; '.join(out)}")
    return "\n".join(lines)


def _that_fit(lines: list[str] | tuple[str, ...], characters: int) -> tuple[list[str], int]:
    """The first lines that fit, and the number of the others."""
    kept: list[str] = []
    for line in lines:
        characters -= len(line) + 1
        if characters < 0:
            break
        kept.append(line)
    return kept, len(lines) - len(kept)
