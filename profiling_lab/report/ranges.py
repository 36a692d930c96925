# SPDX-License-Identifier: Apache-2.0
"""The table of ranges, flat or as a tree."""

from __future__ import annotations

from profiling_lab.analysis.ranges.ranges import RangesResult
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.places import place_fields, place_lines
from profiling_lab.report.stats import SPREAD, stats_fields
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, Report, Unit
from profiling_lab.trace import Trace


def ranges_report(trace: Trace, result: RangesResult, lines: int = 2, stats: bool = False) -> Report:
    """Rows of `ranges` as a report; the style is shown where there are several. stats: not the median of the
    time on the host alone, but all statistics.
    """
    style = "style" if len({row.style for row in result.rows}) > 1 else ""
    itself = "host_self_ns" if result.tree else ""
    spread = " ".join(f"host_{name}" for name in SPREAD.split()) if stats else "host_median_ns"
    table = table_of(
        _fields(),
        f"title {style} projected_total_ns busy_ns operations host_total_ns {itself} host_count {spread}",
        result.rows,
        result.total_matched,
        (place_lines(row.places, lines) for row in result.rows),
    )
    return trace_report(
        "ranges",
        trace,
        result.coverage,
        _header(result),
        table,
        ranges=result.ranges,
        nested=result.nested,
        unfinished=result.unfinished,
        across_threads=result.across_threads,
        not_nested=result.not_nested,
        domains=result.domains,
        tree=result.tree,
    )


def _fields() -> tuple[Field, ...]:
    host_count, *host = stats_fields("host", "host_", total="on the host", count="count")
    projected_count, projected_total, *projected = stats_fields("projected", "projected_", total="on the GPU")
    return (
        Field("key"),
        Field(
            "title",
            "range",
            cell=lambda row: "  " * len(row.parents) + row.title,
            for_people_only=True,
            priority=ALWAYS,
        ),
        Field("domain"),
        Field("name"),
        Field("style", "style", priority=FIRST_TO_GO),
        Field("level", value=lambda row: len(row.parents)),
        Field("parents"),
        replace(host_count, cell=lambda row: row.host.count + row.unfinished),
        *host,
        Field("host_self_ns", "itself", Unit.NS),
        Field("nested"),
        Field("unfinished"),
        projected_count,
        replace(projected_total, cell=lambda row: row.projected.total if row.operations else None),
        *projected,
        Field("busy_ns", "GPU busy", Unit.NS, cell=lambda row: row.busy_ns if row.operations else None),
        Field("operations", "operations", Unit.COUNT),
        Field("threads"),
        *place_fields(),
    )


def _header(result: RangesResult) -> tuple[str, ...]:
    domains = f" in the domains {', '.join(result.domains)} and the default one" if result.domains else ""
    lines = [
        f"{numbers.counted(result.ranges, 'range')}{domains}",
        "  on the GPU: from the first to the last operation launched in a range, summed over ranges; those "
        "of nested ranges contain each other",
    ]
    for count, what in (
        (result.nested, "inside of another of the same name: part of its time, which counts once"),
        (result.unfinished, "had not ended when the recording stopped: they have no time"),
        (result.across_threads, "ended on another thread: what was launched in them cannot be said"),
        (result.not_nested if result.tree else 0, "overlap others without nesting: they stand at the top"),
    ):
        if count:
            lines.append(f"  {numbers.counted(count, 'range')} {what}")
    return tuple(lines)
