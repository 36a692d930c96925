# SPDX-License-Identifier: Apache-2.0
"""The table of lines."""

from __future__ import annotations

import os
import re
from pathlib import Path

from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.kernel_names import readable
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Frame, Trace
from profiling_lab.trace.lines import LineRow, LinesResult

_INSTALLED = re.compile(r"/(site|dist)-packages/")
_NAMED = {"kernel": "kernel", "range": "NVTX range"}


def lines_report(trace: Trace, result: LinesResult) -> Report:
    """Rows of `lines` as a report; a phase that was not asked for has no column."""
    phases = ("forward", "backward") if result.phase == "all" else (result.phase,)
    columns = [Column("key", "key")]
    if result.by in _NAMED:
        columns = [Column("key", _NAMED[result.by])]
    else:
        columns = [Column("key", result.by)]
        columns += [Column("function", "function")] if result.by == "line" else []
    columns += [Column(f"{phase}_ns", phase, Unit.NS) for phase in phases]
    if result.phase == "all" and any(row.unknown_ns for row in result.rows):
        columns += [Column("unknown_ns", "unknown", Unit.NS)]
    columns += [Column("gpu_ns", "total", Unit.NS)] if len(phases) > 1 else []
    columns += [Column("kernels", "kernels", Unit.COUNT), Column("copies", "copies", Unit.COUNT)]
    columns += [Column("share_frac", "of GPU time", Unit.FRAC)]
    short = _short_kernel_names(trace) if result.by == "kernel" else {}
    rows = tuple(
        tuple(_value(row, column.name, short.get(row.key) or _place(row, result.by)) for column in columns)
        for row in result.rows
    )
    details = tuple(tuple(f"< {_at(frame)} {frame.function}" for frame in row.callers) for row in result.rows)
    return Report(
        command="lines",
        trace={"path": str(trace.path)},
        header=coverage_header(trace, result.coverage),
        table=Table(tuple(columns), rows, result.total_matched, details, tuple(map(_data, result.rows))),
        coverage=coverage_data(result.coverage),
    )


def _value(row: LineRow, name: str, place: str) -> Value:
    value: Value = place if name == "key" else getattr(row, name)
    return value


def _place(row: LineRow, by: str) -> str:
    if by == "line":
        return f"{shown_path(row.file)}:{row.line}"
    if by == "file":
        return shown_path(row.file)
    if by in ("function", "module"):
        return f"{row.function} ({shown_path(row.file)})"
    return row.key


def _at(frame: Frame) -> str:
    return f"{shown_path(frame.file)}:{frame.line}"


def shown_path(file: str) -> str:
    """The part of a path that tells files apart: below the current folder, or below site-packages."""
    if match := _INSTALLED.search(file):
        return file[match.end() :]
    if not file.startswith("/"):
        return file
    relative = os.path.relpath(file, Path.cwd())
    return file if relative.startswith("..") else relative


def _short_kernel_names(trace: Trace) -> dict[str, str]:
    operations = trace.operations
    return {
        name: readable(name, short)
        for name, short in zip(operations.names, operations.short_names, strict=True)
    }


def _data(row: LineRow) -> dict[str, object]:
    return {
        "key": row.key,
        "function": row.function,
        "file": row.file,
        "line": row.line,
        "forward_ns": row.forward_ns,
        "backward_ns": row.backward_ns,
        "unknown_ns": row.unknown_ns,
        "gpu_ns": row.gpu_ns,
        "kernels": row.kernels,
        "copies": row.copies,
        "share_frac": round(row.share_frac, 6),
        "callers": [frame_data(frame) for frame in row.callers],
    }


def frame_data(frame: Frame) -> dict[str, object]:
    return {"function": frame.function, "file": frame.file, "line": frame.line}
