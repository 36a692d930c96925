# SPDX-License-Identifier: Apache-2.0
"""The table of the host's waits."""

from __future__ import annotations

from profiling_lab.analysis.syncs import SyncRow, SyncsResult
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.places import place_text
from profiling_lab.report.stats import stats_data
from profiling_lab.report.table import Column, Report, Table, Unit
from profiling_lab.trace import Trace

COLUMNS = (
    Column("what", "waits for"),
    Column("api", "in"),
    Column("idle_ns", "GPU idle after", Unit.NS, "cost"),
    Column("host_ns", "host waited", Unit.NS, "cost"),
    Column("useful_ns", "GPU busy", Unit.NS, "cost"),
    Column("share_frac", "of waiting", Unit.FRAC),
    Column("count", "waits", Unit.COUNT),
    Column("median_ns", "median", Unit.NS, "each"),
    Column("longest_ns", "max", Unit.NS, "each"),
)


def syncs_report(trace: Trace, result: SyncsResult) -> Report:
    """Rows of `syncs` as a report, the line under each."""
    rows = tuple(
        (
            row.what,
            row.api,
            row.idle_ns,
            row.host_ns,
            row.useful_ns,
            row.share_frac,
            row.stats.count,
            row.stats.median,
            row.stats.longest,
        )
        for row in result.rows
    )
    return Report(
        command="syncs",
        trace={
            "path": str(trace.path),
            "host_waits": result.waits,
            "host_ns": result.host_ns,
            "longest_thread_ns": result.longest_thread_ns,
            "useful_ns": result.useful_ns,
            "idle_ns": result.idle_ns,
            "span_ns": result.span_ns,
            "stream_waits": result.stream_waits,
        },
        header=(*coverage_header(trace, result.coverage), *_header(result)),
        table=Table(
            COLUMNS,
            rows,
            result.total_matched,
            tuple((place_text(row.place),) for row in result.rows),
            tuple(map(_data, result.rows)),
        ),
        coverage=coverage_data(result.coverage),
    )


def _header(result: SyncsResult) -> tuple[str, ...]:
    lines = ["the host never waited for the GPU"]
    if result.waits:
        longest = numbers.share(result.longest_thread_ns / result.span_ns if result.span_ns else 0.0)
        lines = [
            f"the host waited {numbers.counted(result.waits, 'time')}, {numbers.time(result.host_ns)} (once "
            f"per thread; {longest} of the time on the thread that waited most)",
            f"  the GPU worked in {numbers.time(result.useful_ns)} of it, and idled "
            f"{numbers.time(result.idle_ns)} after waits before it got work again: that is what they cost",
        ]
    if result.stream_waits:
        waits = numbers.counted(result.stream_waits, "wait")
        lines.append(f"  {waits} of streams for events hold no thread and are not counted")
    return tuple(lines)


def _data(row: SyncRow) -> dict[str, object]:
    frame = row.place.frame
    return {
        "key": row.key,
        "what": row.what,
        "api": row.api,
        "idle_ns": row.idle_ns,
        "host_ns": row.host_ns,
        "useful_ns": row.useful_ns,
        "share_frac": round(row.share_frac, 6),
        "threads": row.threads,
        **stats_data(row.stats),
        "file": frame.file if frame else "",
        "line": frame.line if frame else None,
        "function": frame.function if frame else "",
        "phase": row.place.phase,
        "no_line_because": row.place.reason,
        "within": row.place.within,
    }
