# SPDX-License-Identifier: Apache-2.0
"""The table of copies and memsets."""

from __future__ import annotations

from profiling_lab.analysis.copies import LARGE_BYTES, By, CopiesResult, CopyRow
from profiling_lab.records import replace
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.places import place_fields, place_lines, place_text
from profiling_lab.report.stats import stats_fields
from profiling_lab.report.table import ALWAYS, Report, Unit
from profiling_lab.trace import Trace


def copies_report(trace: Trace, result: CopiesResult, lines: int = 2) -> Report:
    """Rows of `copies` as a report: under each its lines up to a limit, or the one that distinguishes it."""
    memory = "" if result.by == "direction" else "memory"
    table = table_of(
        _fields(),
        f"direction {memory} total_ns calls_ns share_frac count median_ns size_total_bytes bytes_per_s"
        " of_peak_frac",
        result.rows,
        result.total_matched,
        (_lines(row, result.by, lines) for row in result.rows),
    )
    return trace_report(
        "copies",
        trace,
        result.coverage,
        _header(result),
        table,
        by=result.by,
        copies=result.copies,
        sets=result.sets,
        copied_bytes=result.total_bytes,
        copy_ns=result.total_ns,
        pageable_ns=result.pageable_ns,
    )


def _fields() -> tuple[Field, ...]:
    _, *sizes = stats_fields("sizes", "size_", Unit.BYTES, total="size")
    return (
        Field("key"),
        Field("direction", "copy", priority=ALWAYS),
        Field("memory", "memory", value=memory_text, for_people_only=True),
        Field("source_memory", value="source"),
        Field("target_memory", value="target"),
        Field("pageable"),
        *stats_fields("times", total="total", count="count"),
        *sizes,
        Field("share_frac", "of all", Unit.FRAC, priority=ALWAYS),
        Field("calls_ns", "in calls", Unit.NS),
        Field("large_count", value="large"),
        Field("partial_count", value="partial"),
        Field("bytes_per_s", "bandwidth", Unit.RATE),
        Field("peak_bytes_per_s", value="peak.bytes_per_s"),
        Field("peak_source", value=lambda row: row.peak.source if row.peak else ""),
        Field("of_peak_frac", "of peak", Unit.FRAC),
        *place_fields(),
    )


def _header(result: CopiesResult) -> tuple[str, ...]:
    size = result.total_bytes
    amount = f"{size / 1e9:,.2f} GB" if size >= 10_000_000 else numbers.size(size)
    lines = [
        f"{result.copies:,} cop{'y' if result.copies == 1 else 'ies'} of {amount} and "
        f"{numbers.counted(result.sets, 'memset')}, {numbers.time(result.total_ns)} together, summed"
    ]
    if any(row.bytes_per_s is not None for row in result.rows):
        lines.append(f"  bandwidth: over copies of {LARGE_BYTES // 1_000_000} MB or more")
    if partial := sum(row.partial for row in result.rows):
        lines.append(
            f"  {partial:,} of pageable memory seem faster than the link: the recording has only a part of "
            "each; the time in their calls is the whole"
        )
    sources = sorted({f"{numbers.rate(r.peak.bytes_per_s)} ({r.peak.source})" for r in result.rows if r.peak})
    if sources and any(row.of_peak_frac is not None for row in result.rows):
        lines.append(f"  peak: {'; '.join(sources)}; --peak gives another for host and GPU")
    if result.pageable_ns:
        lines.append(
            f"  {numbers.time(result.pageable_ns)} from or to pageable memory: it is copied once more on the "
            "host, and the call blocks; pinned memory avoids both"
        )
    return tuple(lines)


def _lines(row: CopyRow, by: By, most: int) -> tuple[str, ...]:
    if by != "line":
        return place_lines(row.places, most)
    # The places of one line differ in their phase only.
    first = row.places[0]
    return (place_text(first if len(row.places) == 1 else replace(first, phase="")),)


def memory_text(row: CopyRow) -> str:
    """`pinned -> device`; pageable memory is marked."""
    sides = [f"{side.upper()}" if side == "pageable" else side for side in (row.source, row.target) if side]
    return " -> ".join(sides)
