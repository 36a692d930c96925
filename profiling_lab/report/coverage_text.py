# SPDX-License-Identifier: Apache-2.0
"""The header of every table: how much GPU time it covers, and why the rest has no line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from profiling_lab.analysis.coverage import Coverage, file_notes
from profiling_lab.report import numbers
from profiling_lab.report.table import Report, Table
from profiling_lab.trace import Trace
from profiling_lab.trace.spans import Window


def coverage_header(trace: Trace, coverage: Coverage) -> tuple[str, ...]:
    """Lines for people; indented ones belong to the line above them."""
    return (*_window_header(trace, coverage.window), *coverage_lines(trace.path.name, coverage))


def trace_report(
    command: str, trace: Trace, coverage: Coverage, header: Iterable[str], table: Table, **facts: Any
) -> Report:
    """The report of a command about one trace; `facts` are what JSON says of the trace besides its path."""
    return Report(
        command=command,
        trace={"path": str(trace.path), **facts},
        header=(*coverage_header(trace, coverage), *header),
        table=table,
        coverage=coverage_data(coverage),
    )


def totals_header(trace: Trace) -> tuple[str, ...]:
    """The same where lines were not asked for: neither calls nor stacks are read for it."""
    operations = trace.operations
    total = numbers.time(int(operations.duration_ns.sum()))
    counted = numbers.counted(len(operations), "operation")
    return (
        *_window_header(trace, trace.window),
        f"{trace.path.name}: {total} of GPU time in {counted}, summed; which lines launched it was not asked",
        *(f"  note: {note}" for note in file_notes(trace)),
    )


def totals_data(trace: Trace) -> dict[str, Any]:
    """The same for machines: what was not asked for is unknown, not zero."""
    return {
        "gpu_ns": int(trace.operations.duration_ns.sum()),
        "operations": len(trace.operations),
        "attributed_ns": None,
        "attributed_frac": None,
        "unattributed": None,
        "notes": list(file_notes(trace)),
        "window": None if trace.window is None else _window_data(trace.window),
    }


def coverage_lines(name: str, coverage: Coverage) -> tuple[str, ...]:
    """The same for a trace that is not open, except its window."""
    busy, span = numbers.time(coverage.busy_ns), numbers.time(coverage.span_ns)
    idle = f"busy {busy} of {span}"
    if coverage.devices > 1:
        idle = f"{coverage.devices} devices together busy {busy}, {span} from first to last"
    total = (
        f"{numbers.time(coverage.gpu_ns)} of GPU time in {numbers.counted(coverage.operations, 'operation')}"
    )
    lines = [
        f"{name}: {total}, summed; {idle}",
        f"{numbers.share(coverage.attributed_frac)} has a line of your code{_linked(coverage)}",
    ]
    lines += [
        f"  {_share(part.ns, coverage)} without a line: {part.reason}" for part in coverage.unattributed
    ]
    return (*lines, *(f"  note: {note}" for note in coverage.notes))


def _window_header(trace: Trace, window: Window | None) -> tuple[str, ...]:
    if window is None:
        return ()
    gpu, zero = window.gpu, trace.first_ns
    first, last = (int(moment) - zero for moment in (gpu.start_ns.min(), gpu.end_ns.max()))
    where = f"on the GPU from {numbers.time(first)} to {numbers.time(last)} of the recording"
    return (f"window: {window.text}; {where}",)


def _share(part_ns: int, coverage: Coverage) -> str:
    return numbers.share(part_ns / coverage.gpu_ns if coverage.gpu_ns else 0.0)


def _linked(coverage: Coverage) -> str:
    if not coverage.linked_ns:
        return ""
    linked = f"; {_share(coverage.linked_ns, coverage)} is backward joined with its forward line"
    if not coverage.inferred_ns:
        return linked
    return f"{linked} ({_share(coverage.inferred_ns, coverage)} inferred from launches around it)"


def coverage_data(coverage: Coverage) -> dict[str, Any]:
    """The same for machines."""
    return {
        "gpu_ns": coverage.gpu_ns,
        "busy_ns": coverage.busy_ns,
        "span_ns": coverage.span_ns,
        "operations": coverage.operations,
        "kernels": coverage.kernels,
        "devices": coverage.devices,
        "attributed_ns": coverage.attributed_ns,
        "attributed_frac": round(coverage.attributed_frac, 6),
        "linked_ns": coverage.linked_ns,
        "inferred_ns": coverage.inferred_ns,
        "unattributed": [
            {"reason": part.reason, "gpu_ns": part.ns, "operations": part.kernels}
            for part in coverage.unattributed
        ],
        "notes": list(coverage.notes),
        "window": None if coverage.window is None else _window_data(coverage.window),
    }


def _window_data(window: Window) -> dict[str, Any]:
    """What was asked for, and its time on the GPU on the clock of the file."""
    gpu = window.gpu
    return {
        "text": window.text,
        "asked": dict(window.asked),
        "start_ns": int(gpu.start_ns.min()),
        "end_ns": int(gpu.end_ns.max()),
        "spans": len(gpu),
    }
