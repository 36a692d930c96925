# SPDX-License-Identifier: Apache-2.0
"""The table of copies and memory sets."""

from __future__ import annotations

from dataclasses import replace

from profiling_lab.analysis.copies import LARGE_BYTES, By, CopiesResult, CopyRow
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.places import place_lines, place_text, places_data
from profiling_lab.report.stats import stats_data
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Trace


def copies_report(trace: Trace, result: CopiesResult, lines: int = 2) -> Report:
    """Rows of `copies` as a report: under each at most so many lines, or the one that tells it apart."""
    columns = [Column("direction", "copy")]
    if result.by != "direction":
        columns += [Column("memory", "memory")]
    columns += [
        Column("total_ns", "total", Unit.NS),
        Column("share_frac", "of all", Unit.FRAC),
        Column("count", "count", Unit.COUNT),
        Column("median_ns", "median", Unit.NS, "each"),
        Column("total_bytes", "size", Unit.BYTES),
        Column("bytes_per_s", "bandwidth", Unit.RATE),
        Column("of_peak_frac", "of peak", Unit.FRAC),
    ]
    rows = tuple(tuple(_value(row, column.name) for column in columns) for row in result.rows)
    return Report(
        command="copies",
        trace={
            "path": str(trace.path),
            "by": result.by,
            "copies": result.copies,
            "sets": result.sets,
            "copied_bytes": result.total_bytes,
            "copy_ns": result.total_ns,
            "pageable_ns": result.pageable_ns,
        },
        header=(*coverage_header(trace, result.coverage), *_header(result)),
        table=Table(
            tuple(columns),
            rows,
            result.total_matched,
            tuple(_lines(row, result.by, lines) for row in result.rows),
            tuple(map(_data, result.rows)),
        ),
        coverage=coverage_data(result.coverage),
    )


def _header(result: CopiesResult) -> tuple[str, ...]:
    size = result.total_bytes
    amount = f"{size / 1e9:,.2f} GB" if size >= 10_000_000 else numbers.size(size)
    lines = [
        f"{result.copies:,} cop{'y' if result.copies == 1 else 'ies'} of {amount} and "
        f"{numbers.counted(result.sets, 'memory set')}, {numbers.time(result.total_ns)} together, summed"
    ]
    if any(row.bytes_per_s is not None for row in result.rows):
        lines.append(f"  bandwidth: over copies of {LARGE_BYTES // 1_000_000} MB or more")
    sources = sorted({f"{numbers.rate(r.peak.bytes_per_s)} ({r.peak.source})" for r in result.rows if r.peak})
    if sources and any(row.of_peak_frac is not None for row in result.rows):
        lines.append(f"  peak: {'; '.join(sources)}; --peak gives another for host and GPU")
    if result.pageable_ns:
        lines.append(
            f"  {numbers.time(result.pageable_ns)} from or to pageable memory: it is copied once more on the "
            "host, and the call blocks; pinned memory avoids both"
        )
    return tuple(lines)


def _value(row: CopyRow, name: str) -> Value:
    values: dict[str, Value] = {
        "memory": memory_text(row),
        "total_ns": row.times.total,
        "count": row.times.count,
        "median_ns": row.times.median,
        "total_bytes": row.sizes.total,
    }
    if name in values:
        return values[name]
    value: Value = getattr(row, name)
    return value


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


def _data(row: CopyRow) -> dict[str, object]:
    return {
        "key": row.key,
        "direction": row.direction,
        "source_memory": row.source,
        "target_memory": row.target,
        "pageable": row.pageable,
        **stats_data(row.times),
        **{name: v for name, v in stats_data(row.sizes, "size_", "bytes").items() if name != "size_count"},
        "share_frac": round(row.share_frac, 6),
        "large_count": row.large,
        "bytes_per_s": row.bytes_per_s,
        "peak_bytes_per_s": row.peak.bytes_per_s if row.peak else None,
        "peak_source": row.peak.source if row.peak else "",
        "of_peak_frac": None if row.of_peak_frac is None else round(row.of_peak_frac, 6),
        **places_data(row.places),
    }
