# SPDX-License-Identifier: Apache-2.0
"""The table of collectives, of one rank or of several."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from profiling_lab.analysis.collectives import CollectivesResult, CollectiveSum
from profiling_lab.analysis.collectives.bandwidth import Arrivals
from profiling_lab.report import numbers
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.places import place_fields, place_lines, place_text
from profiling_lab.report.ranks.job_header import clocks_line, job_coverage, job_lines
from profiling_lab.report.stats import stats_fields
from profiling_lab.report.table import ALWAYS, SPARE, Report, Unit


def collectives_report(result: CollectivesResult, lines: int = 2) -> Report:
    """`collectives` as a report; lines: how many lines of the program are shown under a row at most."""
    several = len(result.ranks) > 1
    shown = (
        "kind group which group_size" if result.by == "collective" else "kind group group_size count",
        "size_median_bytes busy_ns exposed_ns hidden_ns",
        "algorithm_bytes_per_s bus_bytes_per_s",
        "spread_ns last_rank arrived_bus_bytes_per_s" if several else "",
        "links_bus_bytes_per_s links_reached_frac" if result.links else "",
    )
    table = table_of(
        _FIELDS,
        " ".join(shown),
        result.rows,
        result.total_matched,
        (_lines(row, result, lines) for row in result.rows),
    )
    return Report(
        command="collectives",
        trace={
            "files": result.files,
            "by": result.by,
            "window": dict(result.window) or None,
            "world_size": result.assignments.world_size,
            "ranks_said_by": result.assignments.said_by,
            "clocks": asdict(result.clocks),
            "links": str(result.links) if result.links else None,
        },
        header=_header(result),
        table=table,
        coverage=job_coverage(result.ranks, result.assignments.missing, result.failures, result.notes),
        summary={
            "calls": result.calls,
            "busy_ns": result.busy_ns,
            "hidden_ns": result.hidden_ns,
            "exposed_ns": result.exposed_ns,
            "wait_ns": result.arrivals.wait_ns,
            "transfer_ns": result.arrivals.transfer_ns,
        },
    )


def _size(name: str) -> Any:
    """Of no known message nothing is known, not 0."""
    return lambda row: getattr(row.sizes, name) if row.sizes.count else None


def _which(row: CollectiveSum) -> str | None:
    """Steps as `--step` counts them; None for one that is not matched."""
    if row.number is None:
        return None
    return str(row.number) if row.step is None else f"{row.step}: {row.number}"


_FIELDS = (
    Field("key"),
    Field("kind", "collective", priority=ALWAYS),
    Field(
        "group", "group", cell=lambda row: row.group.removeprefix("communicator ") or None, priority=ALWAYS
    ),
    Field("members"),
    Field("group_size", "ranks", Unit.COUNT, priority=SPARE),
    Field("ranks"),
    Field("step"),
    Field("number"),
    Field("which", "number", value=_which, for_people_only=True, priority=ALWAYS),
    Field("start_ns"),
    *stats_fields("times", count="calls"),
    Field("size_count", value="sizes.count"),
    Field("size_total_bytes"),
    Field("size_median_bytes", "message", Unit.BYTES, value=_size("median")),
    Field("size_min_bytes", value=_size("shortest")),
    Field("size_max_bytes", value=_size("longest")),
    Field("busy_ns", "busy", Unit.NS, "busy", priority=ALWAYS),
    Field("exposed_ns", "exposed", Unit.NS, "busy", priority=ALWAYS),
    Field("hidden_ns", "hidden", Unit.NS, "busy", priority=SPARE),
    Field("measured_count", value="rates.measured"),
    Field("algorithm_bytes_per_s", "algbw", Unit.RATE, value="rates.algorithm_bytes_per_s", priority=SPARE),
    Field("bus_bytes_per_s", "busbw", Unit.RATE, value="rates.bus_bytes_per_s"),
    Field("compared_count", value="arrivals.compared"),
    Field("wait_ns", value="arrivals.wait_ns"),
    Field("transfer_ns", value="arrivals.transfer_ns"),
    Field("spread_ns", "spread", Unit.NS, "spread", value="arrivals.spread_ns"),
    Field("last_rank", "last", Unit.COUNT, value="arrivals.last_rank"),
    Field("last_frac", unit=Unit.FRAC, value="arrivals.last_frac"),
    Field("arrived_bus_bytes_per_s", "busbw then", Unit.RATE, value="arrivals.bus_bytes_per_s"),
    Field("links_bus_bytes_per_s", "links", Unit.RATE, value="links.bus_bytes_per_s"),
    Field("links_reached_frac", "of links", Unit.FRAC, value="links.reached_frac"),
    Field("phase", value=lambda row: row.places[0].phase),
    *place_fields(),
)


def _lines(row: CollectiveSum, result: CollectivesResult, most: int) -> tuple[str, ...]:
    if not most:
        return ()
    return (place_text(row.places[0]),) if len(row.places) == 1 else place_lines(row.places, most)


def _waiting(met: Arrivals) -> list[str]:
    """How much of the time of matched collectives is no transfer."""
    if met.wait_ns is None or met.transfer_ns is None:
        return []
    share = numbers.share(met.wait_ns / max(met.wait_ns + met.transfer_ns, 1))
    return [
        f"  in {met.compared:,} that all ranks came to they waited {numbers.time(met.wait_ns)} for the last "
        f"one ({share} of the time in these); the transfers after that took {numbers.time(met.transfer_ns)}"
    ]


def _header(result: CollectivesResult) -> tuple[str, ...]:
    calls = numbers.counted(result.calls, "collective")
    over = f", summed over {len(result.ranks):,} ranks" if len(result.ranks) > 1 else ""
    exposed = numbers.share(result.exposed_ns / result.busy_ns if result.busy_ns else 0.0)
    lines = [
        f"{calls}, busy {numbers.time(result.busy_ns)}{over}: {numbers.time(result.exposed_ns)} exposed "
        f"({exposed}: no compute at the time), {numbers.time(result.hidden_ns)} hidden behind compute"
    ]
    lines += _waiting(result.arrivals)
    unsized, ungrouped = result.calls - result.sized, result.calls - result.grouped
    if unsized or ungrouped:
        lines.append(
            f"  no bandwidth where the file has no message size ({unsized:,} of {calls}) or no group size "
            f"({ungrouped:,}): {result.ranks[0].communicators}"
        )
    if any(row.rates.measured for row in result.rows):
        lines.append(
            "  algbw, busbw: as nccl-tests define them, over the time from a rank's arrival to its end: "
            "waiting for the others lowers them"
        )
    if len(result.ranks) > 1 and any(row.arrivals.compared for row in result.rows):
        lines.append(
            "  spread: from the first rank's arrival to that of the last, which is named; busbw then: from "
            "the last arrival on"
        )
    if result.links:
        begin = (
            "the last arrival" if any(row.arrivals.compared for row in result.rows) else "a rank's arrival"
        )
        lines.append(f"  links: what {result.links}, reach for these messages; of links: from {begin} on")
    job = result.assignments
    head = job_lines(
        result.ranks,
        result.files,
        job.world_size,
        job.said_by,
        result.window,
        job.missing,
        result.failures,
    )
    clocks = (clocks_line(result.clocks),) if len(result.ranks) > 1 else ()
    return (*head, *clocks, *(f"  note: {note}" for note in result.notes), *lines)
