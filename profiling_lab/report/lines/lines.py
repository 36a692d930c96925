# SPDX-License-Identifier: Apache-2.0
"""The table of lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiling_lab.analysis.lines import Executed, LineRow, LinesResult, PhaseFilter
from profiling_lab.analysis.lines_host import HostLineRow
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.kernels.names import readable
from profiling_lab.report.paths import shown_path
from profiling_lab.report.source_text import source_fields
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, USUAL, Report, Unit
from profiling_lab.trace import Frame, Trace
from profiling_lab.trace.phases import LINE_PHASES

_NAMED = {"kernel": "kernel", "range": "NVTX range"}


def lines_report(trace: Trace, result: LinesResult) -> Report:
    """Rows of `lines` as a report; what no row has gets no column."""
    rows, is_named = result.rows, result.by in _NAMED
    times = [tuple(getattr(row, f"{phase}_ns") for phase in LINE_PHASES) for row in rows]
    function = "function" if result.by == "line" else ""
    inclusive = "inclusive_ns" if any(r.inclusive_ns != r.gpu_ns for r in rows) and not is_named else ""
    copies = "copies" if any(row.copies for row in rows) else ""
    texts = trace.source_texts if result.by == "line" else {}
    source = "source" if any((row.file, row.line) in texts for row in rows) else ""
    phases = shown_phases(times, result.phase)
    table = table_of(
        (*_fields(trace, result.by, of_phase(phases)), *source_fields(texts, lambda row: row)),
        f"key {function} {phases} {inclusive} kernels {copies} share_frac {source}",
        rows,
        result.total_matched,
        (tuple(_details(row)) for row in rows),
    )
    summary = {f"{name}_ns": ns for name, ns in zip(LINE_PHASES, result.phase_ns, strict=True)}
    report = trace_report("lines", trace, result.coverage, phase_header(result.phase_ns), table)
    return replace(report, summary=summary)


def _fields(trace: Trace, by: str, phases: int) -> tuple[Field, ...]:
    short = _short_kernel_names(trace) if by == "kernel" else {}
    return (
        Field(
            "key",
            _NAMED.get(by, by),
            cell=lambda row: short.get(row.key) or shown_row(row, by),
            priority=ALWAYS,
            is_path=by not in _NAMED,
        ),
        Field("function", "function", priority=SPARE),
        Field("file"),
        Field("line"),
        *(Field(f"{phase}_ns", phase, Unit.NS, priority=phases) for phase in LINE_PHASES),
        Field("gpu_ns", "total", Unit.NS, priority=ALWAYS),
        Field("inclusive_ns", "with calls", Unit.NS, priority=SPARE),
        Field("kernels", "kernels", Unit.COUNT, priority=SPARE),
        Field("copies", "copies", Unit.COUNT, priority=FIRST_TO_GO),
        Field("share_frac", "of GPU time", Unit.FRAC, priority=ALWAYS),
        Field("callers", value=lambda row: [frame_data(frame) for frame in row.callers]),
        Field("executed", value=lambda row: [_executed(part) for part in row.executed]),
    )


def phase_header(phase_ns: Sequence[int]) -> tuple[str, ...]:
    """How all GPU time divides into phases, where there are several."""
    parts = [
        f"{numbers.share(ns / sum(phase_ns))} {name}"
        for name, ns in zip(LINE_PHASES, phase_ns, strict=True)
        if ns
    ]
    return (f"of all GPU time {', '.join(parts)}",) if len(parts) > 1 else ()


def shown_phases(times: Sequence[tuple[int, ...]], phase: PhaseFilter, total: str = "gpu_ns") -> str:
    """Columns: each phase that any row has time in, and their total where there are several."""
    if phase != "all":
        return f"{phase}_ns"
    shown = [name for name, column in zip(LINE_PHASES, zip(*times, strict=True), strict=False) if any(column)]
    return " ".join([*(f"{name}_ns" for name in shown), *([total] if len(shown) != 1 else [])])


def of_phase(columns: str) -> int:
    """The priority of the time of a phase: without a column for the total it is the total."""
    return USUAL if " " in columns else ALWAYS


def _details(row: LineRow) -> Iterator[str]:
    for frame in row.callers:
        yield f"< {shown_place(frame)} {frame.function}"
    for part in row.executed:
        where = f"{shown_place(part.frame)} {part.frame.function}"
        took = f"{numbers.time(part.gpu_ns)} in {numbers.counted(part.operations, 'operation')}"
        yield f"backward executed at {where}: {took}"


def shown_row(row: LineRow | HostLineRow, by: str) -> str:
    """What people read as the first cell of a row."""
    if by == "line":
        return _shown(row.file, row.line, row.function)
    if by == "file":
        return shown_path(row.file)
    if by in ("function", "module"):
        return f"{row.function} ({shown_path(row.file)})"
    if by in ("layer", "instance"):
        return _layer(row.key)
    return row.key


def _layer(key: str) -> str:
    """`Net > Block:12 > Linear:31 (model.py)`: layers differ by the lines that call them."""
    places = [part.partition("@")[::2] for part in key.split(" > ")]
    path = " > ".join(f"{name}:{place.rpartition(':')[2]}" if place else name for name, place in places)
    file = places[-1][1].rpartition(":")[0]
    return f"{path} ({shown_path(file)})" if file else path


def shown_place(frame: Frame) -> str:
    """`model.py:30`"""
    return _shown(frame.file, frame.line, frame.function)


def _shown(file: str, line: int, function: str) -> str:
    """Instructions that Python itself adds have no line: the function says where they are."""
    return f"{shown_path(file)}:{line}" if line else f"{shown_path(file)} ({function}, no line)"


def _short_kernel_names(trace: Trace) -> dict[str, str]:
    operations = trace.operations
    return {
        name: readable(name, short)
        for name, short in zip(operations.names, operations.short_names, strict=True)
    }


def _executed(part: Executed) -> dict[str, object]:
    return frame_data(part.frame) | {"gpu_ns": part.gpu_ns, "operations": part.operations}


def frame_data(frame: Frame) -> dict[str, object]:
    return {"function": frame.function, "file": frame.file, "line": frame.line}
