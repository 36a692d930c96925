# SPDX-License-Identifier: Apache-2.0
"""The table of launches: time in the call, in the queue and on the GPU."""

from __future__ import annotations

from profiling_lab.analysis.kernels.launches import LaunchesResult, LaunchRow, Phases
from profiling_lab.analysis.stats import Stats
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.kernel_names import readable
from profiling_lab.report.places import place_lines, places_data
from profiling_lab.report.stats import stats_data
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Trace

_PHASES = ("call", "queue", "kernel")


def phase_columns() -> tuple[Column, ...]:
    """Medians of the phases, with the number of launches that were queued at all."""
    medians = (Column(f"{phase}_median_ns", phase, Unit.NS, "phase") for phase in _PHASES)
    return (Column("queued", "queued", Unit.COUNT), *medians)


def phase_values(phases: Phases) -> tuple[Value, ...]:
    """As `phase_columns`; None for what no launch of the row has."""
    medians = (stats.median if stats.count else None for stats in (phases.call, phases.queue, phases.kernel))
    return (phases.queue.count if phases.total.count else None, *medians)


def phases_data(phases: Phases) -> dict[str, Value]:
    """All statistics of all phases, for machines."""
    parts: tuple[tuple[str, Stats], ...] = (
        ("launch", phases.total),
        ("call", phases.call),
        ("queue", phases.queue),
        ("kernel", phases.kernel),
    )
    return {name: value for phase, stats in parts for name, value in stats_data(stats, f"{phase}_").items()}


def launches_report(trace: Trace, result: LaunchesResult, lines: int = 2) -> Report:
    """Rows of `launches` as a report; process, thread and device are shown where there are several."""
    several = len({(row.pid, row.tid, row.device) for row in result.rows}) > 1
    where = (Column("pid", "process"), Column("tid", "thread"), Column("device", "GPU")) if several else ()
    columns = (
        Column("kernel", "kernel"),
        Column("api", "launched by"),
        *where,
        Column("launch_total_ns", "total", Unit.NS),
        Column("count", "launches", Unit.COUNT),
        *phase_columns(),
    )
    rows = tuple(
        (
            readable(row.kernel, row.short_kernel),
            row.api,
            *((row.pid, row.tid, row.device) if several else ()),
            row.phases.total.total,
            row.phases.total.count,
            *phase_values(row.phases),
        )
        for row in result.rows
    )
    return Report(
        command="apis",
        trace={
            "path": str(trace.path),
            "launches": result.launches,
            "queued": result.queued,
            "unrecorded": result.unrecorded,
        },
        header=(*coverage_header(trace, result.coverage), *_header(result)),
        table=Table(
            columns,
            rows,
            result.total_matched,
            tuple(place_lines(row.places, lines) for row in result.rows),
            tuple(map(_data, result.rows)),
        ),
        coverage=coverage_data(result.coverage),
    )


def _header(result: LaunchesResult) -> tuple[str, ...]:
    queued = numbers.share(result.queued / result.launches)
    lines = [
        f"{numbers.counted(result.launches, 'kernel')} with the call that launched them; {queued} waited in "
        "a queue, the GPU having other work",
        "  total: from the start of the call to the end of call or kernel; call, queue, kernel: medians, "
        "that of the queue of what was queued",
    ]
    if result.unrecorded:
        lines.append(f"  {numbers.counted(result.unrecorded, 'kernel')} without a recorded call are left out")
    return tuple(lines)


def _data(row: LaunchRow) -> dict[str, object]:
    return {
        "key": row.key,
        "pid": row.pid,
        "tid": row.tid,
        "device": row.device,
        "api": row.api,
        "kernel": row.kernel,
        "short_kernel": row.short_kernel,
        **phases_data(row.phases),
        **places_data(row.places),
    }
