# SPDX-License-Identifier: Apache-2.0
"""The table of API calls."""

from __future__ import annotations

from profiling_lab.analysis.apis import ApiRow, ApisResult
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.places import place_fields, place_lines
from profiling_lab.report.stats import SPREAD, stats_fields
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, Report, Unit
from profiling_lab.trace import Trace


def apis_report(trace: Trace, result: ApisResult, lines: int = 2) -> Report:
    """Rows of `apis` as a report: under each the lines that make the call, up to a limit."""
    full = "queue_full_ns" if any(row.queue_full_ns for row in result.rows) else ""
    table = table_of(
        _fields(),
        f"name kind total_ns {full} share_frac count {SPREAD} threads",
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
        calls=result.calls,
        api_ns=result.total_ns,
        queue_full_ns=result.queue_full_ns,
        threads=result.threads,
        watchdog_polls=result.polls,
    )


def _fields() -> tuple[Field, ...]:
    return (
        Field("key"),
        Field("name", "call", priority=ALWAYS),
        Field("kind", "does", cell=_kind, priority=FIRST_TO_GO),
        *stats_fields("stats", total="total", count="calls"),
        Field("queue_full_ns", "queue full", Unit.NS),
        Field("share_frac", "of API time", Unit.FRAC, priority=ALWAYS),
        Field("threads", "threads", Unit.COUNT, priority=FIRST_TO_GO),
        Field("watchdog_polls", value="polls"),
        Field("pollers"),
        *place_fields(),
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
