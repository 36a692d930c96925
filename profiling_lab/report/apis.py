# SPDX-License-Identifier: Apache-2.0
"""The table of API calls."""

from __future__ import annotations

from profiling_lab.analysis.apis import ApiRow, ApisResult
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.places import place_lines, places_data
from profiling_lab.report.stats import spread_columns, spread_values, stats_data
from profiling_lab.report.table import Column, Report, Table, Unit
from profiling_lab.trace import Trace

_FULL = (Column("queue_full_ns", "queue full", Unit.NS),)


def _columns(full: bool) -> tuple[Column, ...]:
    return (
        Column("name", "call"),
        Column("kind", "does"),
        Column("total_ns", "total", Unit.NS),
        *(_FULL if full else ()),
        Column("share_frac", "of API time", Unit.FRAC),
        Column("count", "calls", Unit.COUNT),
        *spread_columns(),
        Column("threads", "threads", Unit.COUNT),
    )


def apis_report(trace: Trace, result: ApisResult, lines: int = 2) -> Report:
    """Rows of `apis` as a report: under each at most so many of the lines that make the call."""
    full = any(row.queue_full_ns for row in result.rows)
    rows = tuple(
        (
            row.name,
            _kind(row),
            row.stats.total,
            *((row.queue_full_ns,) if full else ()),
            row.share_frac,
            row.stats.count,
            *spread_values(row.stats),
            row.threads,
        )
        for row in result.rows
    )
    return Report(
        command="apis",
        trace={
            "path": str(trace.path),
            "calls": result.calls,
            "api_ns": result.total_ns,
            "queue_full_ns": result.queue_full_ns,
            "threads": result.threads,
            "watchdog_polls": result.polls,
        },
        header=(*coverage_header(trace, result.coverage), *_header(result)),
        table=Table(
            _columns(full),
            rows,
            result.total_matched,
            tuple(place_lines(row.places, lines) for row in result.rows),
            tuple(map(_data, result.rows)),
        ),
        coverage=coverage_data(result.coverage),
    )


def _header(result: ApisResult) -> tuple[str, ...]:
    threads = numbers.counted(result.threads, "thread")
    total = (
        f"{numbers.counted(result.calls, 'API call')}, {numbers.time(result.total_ns)} inside of them, "
        f"summed over {threads}"
    )
    lines = [total]
    if result.queue_full_ns:
        full = numbers.time(result.queue_full_ns)
        lines.append(f"  {full} of it with a full launch queue: there the host waited for the GPU")
    if result.polls:
        polls = numbers.counted(result.polls, "call")
        lines.append(f"  {polls} of threads that only ask whether something has ended: they hold nothing up")
    return tuple(lines)


def _kind(row: ApiRow) -> str:
    if not row.polls:
        return row.kind
    who = f" ({', '.join(row.pollers)})" if row.pollers else ""
    polls = f"polls{who}"
    return polls if row.polls == row.stats.count else f"{row.kind}, {row.polls:,} {polls}".lstrip(", ")


def _data(row: ApiRow) -> dict[str, object]:
    return {
        "key": row.key,
        "name": row.name,
        "kind": row.kind,
        **stats_data(row.stats),
        "queue_full_ns": row.queue_full_ns,
        "share_frac": round(row.share_frac, 6),
        "threads": row.threads,
        "watchdog_polls": row.polls,
        "pollers": list(row.pollers),
        **places_data(row.places),
    }
