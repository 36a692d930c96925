# SPDX-License-Identifier: Apache-2.0
"""The table of launches: time in the call, in the queue and on the GPU."""

from __future__ import annotations

from typing import Any

from profiling_lab.analysis.kernels.launches import LaunchesResult
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.kernels.names import readable
from profiling_lab.report.places import place_fields, place_lines
from profiling_lab.report.stats import stats_fields
from profiling_lab.report.table import ALWAYS, SPARE, Report
from profiling_lab.trace import Trace

PHASES = "queue_count call_median_ns queue_median_ns kernel_median_ns"
"""columns: medians of the phases, with the number of launches that were queued at all"""


def phase_fields(total: str = "", count: str = "") -> tuple[Field, ...]:
    """All statistics of all phases of a row; copies have none. total, count: the headings of the columns for
    the launch as a whole.
    """
    launch = stats_fields("phases.total", "launch_", total=total, count=count)
    call, queue, kernel = (
        stats_fields(f"phases.{phase}", f"{phase}_", scale="phase", median=phase, count="queued")
        for phase in ("call", "queue", "kernel")
    )
    queued = replace(queue[0], cell=_queued)
    return (*launch, *call, queued, *queue[1:], *kernel)


def _queued(row: Any) -> int | None:
    return row.phases.queue.count if row.phases and row.phases.total.count else None


def launches_report(trace: Trace, result: LaunchesResult, lines: int = 2) -> Report:
    """Rows of `launches` as a report; process, thread and device are shown where there are several."""
    several = "pid tid device" if len({(row.pid, row.tid, row.device) for row in result.rows}) > 1 else ""
    table = table_of(
        _FIELDS,
        f"kernel api {several} launch_total_ns launch_count {PHASES}",
        result.rows,
        result.total_matched,
        (place_lines(row.places, lines) for row in result.rows),
    )
    return trace_report(
        "apis",
        trace,
        result.coverage,
        _header(result),
        table,
        launches=result.launches,
        queued=result.queued,
        unrecorded=result.unrecorded,
    )


_FIELDS = (
    Field("key"),
    Field("pid", "process", priority=ALWAYS),
    Field("tid", "thread", priority=ALWAYS),
    Field("device", "GPU", priority=ALWAYS),
    Field("api", "launched by", priority=SPARE),
    Field("kernel", "kernel", cell=lambda row: readable(row.kernel, row.short_kernel), priority=ALWAYS),
    Field("short_kernel"),
    *phase_fields(total="total", count="launches"),
    *place_fields(),
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
