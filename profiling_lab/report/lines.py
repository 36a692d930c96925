# SPDX-License-Identifier: Apache-2.0
"""The table of lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from profiling_lab.analysis.lines import LineRow, LinesResult, PhaseFilter
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.kernel_names import readable
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Frame, Trace
from profiling_lab.trace.phases import LINE_PHASES

_INSTALLED = re.compile(r"/(site|dist)-packages/")
_NAMED = {"kernel": "kernel", "range": "NVTX range"}


def lines_report(trace: Trace, result: LinesResult) -> Report:
    """Rows of `lines` as a report; what no row has gets no column."""
    rows = result.rows
    columns = [Column("key", _NAMED.get(result.by, result.by))]
    columns += [Column("function", "function")] if result.by == "line" else []
    columns += phase_columns(
        [tuple(getattr(row, f"{phase}_ns") for phase in LINE_PHASES) for row in rows], result.phase
    )
    if any(row.inclusive_ns != row.gpu_ns for row in rows) and result.by not in _NAMED:
        columns += [Column("inclusive_ns", "with calls", Unit.NS)]
    columns += [Column("kernels", "kernels", Unit.COUNT)]
    columns += [Column("copies", "copies", Unit.COUNT)] if any(row.copies for row in rows) else []
    columns += [Column("share_frac", "of GPU time", Unit.FRAC)]
    short = _short_kernel_names(trace) if result.by == "kernel" else {}
    return Report(
        command="lines",
        trace={"path": str(trace.path)},
        header=(*coverage_header(trace, result.coverage), *phase_header(result.phase_ns)),
        table=Table(
            tuple(columns),
            tuple(
                tuple(_value(row, c.name, short.get(row.key) or _place(row, result.by)) for c in columns)
                for row in rows
            ),
            result.total_matched,
            tuple(tuple(_details(row)) for row in rows),
            tuple(map(_data, rows)),
        ),
        coverage=coverage_data(result.coverage),
        summary={f"{name}_ns": ns for name, ns in zip(LINE_PHASES, result.phase_ns, strict=True)},
    )


def phase_header(phase_ns: Sequence[int]) -> tuple[str, ...]:
    """How all GPU time divides into phases, where there are several."""
    parts = [
        f"{numbers.share(ns / sum(phase_ns))} {name}"
        for name, ns in zip(LINE_PHASES, phase_ns, strict=True)
        if ns
    ]
    return (f"of all GPU time {', '.join(parts)}",) if len(parts) > 1 else ()


def phase_columns(times: Sequence[tuple[int, ...]], phase: PhaseFilter) -> list[Column]:
    """A column per phase that any row has time in, and their total where there are several."""
    if phase != "all":
        return [Column(f"{phase}_ns", phase, Unit.NS)]
    shown = [name for name, column in zip(LINE_PHASES, zip(*times, strict=True), strict=False) if any(column)]
    out = [Column(f"{name}_ns", name, Unit.NS) for name in shown]
    return out + ([Column("gpu_ns", "total", Unit.NS)] if len(out) != 1 else [])


def _details(row: LineRow) -> Iterator[str]:
    for frame in row.callers:
        yield f"< {shown_place(frame)} {frame.function}"
    for part in row.executed:
        where = f"{shown_place(part.frame)} {part.frame.function}"
        took = f"{numbers.time(part.gpu_ns)} in {numbers.counted(part.operations, 'operation')}"
        yield f"backward executed at {where}: {took}"


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
    if by == "layer":
        return _layer(row.key)
    return row.key


def _layer(key: str) -> str:
    """`Net > Block:12 > Linear:31 (model.py)`: the lines that call them tell layers apart."""
    places = [part.partition("@")[::2] for part in key.split(" > ")]
    path = " > ".join(f"{name}:{place.rpartition(':')[2]}" if place else name for name, place in places)
    file = places[-1][1].rpartition(":")[0]
    return f"{path} ({shown_path(file)})" if file else path


def shown_place(frame: Frame) -> str:
    """`model.py:30`"""
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
        "recompute_ns": row.recompute_ns,
        "optimizer_ns": row.optimizer_ns,
        "unknown_ns": row.unknown_ns,
        "gpu_ns": row.gpu_ns,
        "inclusive_ns": row.inclusive_ns,
        "kernels": row.kernels,
        "copies": row.copies,
        "share_frac": round(row.share_frac, 6),
        "callers": [frame_data(frame) for frame in row.callers],
        "executed": [
            frame_data(part.frame) | {"gpu_ns": part.gpu_ns, "operations": part.operations}
            for part in row.executed
        ],
    }


def frame_data(frame: Frame) -> dict[str, object]:
    return {"function": frame.function, "file": frame.file, "line": frame.line}
