# SPDX-License-Identifier: Apache-2.0
"""The table of ranges, flat or as a tree."""

from __future__ import annotations

from profiling_lab.analysis.ranges import RangeRow, RangesResult
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.places import place_lines, places_data
from profiling_lab.report.stats import spread_columns, spread_values, stats_data
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Trace


def ranges_report(trace: Trace, result: RangesResult, lines: int = 2, stats: bool = False) -> Report:
    """Rows of `ranges` as a report; the style is shown where there are several. stats: not the median of the
    time on the host alone, but all statistics.
    """
    columns = [Column("title", "range")]
    if len({row.style for row in result.rows}) > 1:
        columns += [Column("style", "style")]
    columns += [
        Column("projected_total_ns", "on the GPU", Unit.NS, "total"),
        Column("busy_ns", "GPU busy", Unit.NS, "total"),
        Column("operations", "operations", Unit.COUNT),
        Column("host_total_ns", "on the host", Unit.NS, "total"),
    ]
    if result.tree:
        columns += [Column("host_self_ns", "itself", Unit.NS, "total")]
    spread = spread_columns("host_")
    columns += [Column("count", "count", Unit.COUNT), *(spread if stats else spread[1:2])]
    rows = tuple(_values(row, [column.name for column in columns]) for row in result.rows)
    return Report(
        command="ranges",
        trace={
            "path": str(trace.path),
            "ranges": result.ranges,
            "unfinished": result.unfinished,
            "across_threads": result.across_threads,
            "not_nested": result.not_nested,
            "domains": list(result.domains),
            "tree": result.tree,
        },
        header=(*coverage_header(trace, result.coverage), *_header(result)),
        table=Table(
            tuple(columns),
            rows,
            result.total_matched,
            tuple(place_lines(row.places, lines) for row in result.rows),
            tuple(map(_data, result.rows)),
        ),
        coverage=coverage_data(result.coverage),
    )


def _header(result: RangesResult) -> tuple[str, ...]:
    domains = f" in the domains {', '.join(result.domains)} and the default one" if result.domains else ""
    lines = [
        f"{numbers.counted(result.ranges, 'range')}{domains}",
        "  on the GPU: from the first to the last operation launched in a range, summed over ranges; those "
        "of nested ranges contain each other",
    ]
    for count, what in (
        (result.unfinished, "had not ended when the recording stopped: they have no time"),
        (result.across_threads, "ended on another thread: what was launched in them cannot be said"),
        (result.not_nested if result.tree else 0, "overlap others without nesting: they stand at the top"),
    ):
        if count:
            lines.append(f"  {numbers.counted(count, 'range')} {what}")
    return tuple(lines)


def _values(row: RangeRow, names: list[str]) -> tuple[Value, ...]:
    known: dict[str, Value] = {
        "title": "  " * len(row.parents) + row.title,
        "style": row.style,
        "projected_total_ns": row.projected.total if row.operations else None,
        "busy_ns": row.busy_ns if row.operations else None,
        "operations": row.operations,
        "host_total_ns": row.host.total,
        "host_self_ns": row.host_self_ns,
        "count": row.host.count + row.unfinished,
    }
    spread = [column.name for column in spread_columns("host_")]
    known |= dict(zip(spread, spread_values(row.host), strict=True))
    return tuple(known[name] for name in names)


def _data(row: RangeRow) -> dict[str, object]:
    return {
        "key": row.key,
        "domain": row.domain,
        "name": row.name,
        "style": row.style,
        "level": len(row.parents),
        "parents": list(row.parents),
        **stats_data(row.host, "host_"),
        "host_self_ns": row.host_self_ns,
        "unfinished": row.unfinished,
        **stats_data(row.projected, "projected_"),
        "busy_ns": row.busy_ns,
        "operations": row.operations,
        "threads": row.threads,
        **places_data(row.places),
    }
