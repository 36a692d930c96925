# SPDX-License-Identifier: Apache-2.0
"""The table of the host's waits."""

from __future__ import annotations

from profiling_lab.analysis.syncs import SyncsResult
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, frame_fields, table_of
from profiling_lab.report.places import place_text
from profiling_lab.report.stats import stats_fields
from profiling_lab.report.table import ALWAYS, Report, Unit
from profiling_lab.trace import Trace

_FIELDS = (
    Field("key"),
    Field("what", "waits for", priority=ALWAYS),
    Field("api", "in"),
    Field("idle_ns", "GPU idle after", Unit.NS, "cost", priority=ALWAYS),
    Field("host_ns", "host waited", Unit.NS, "cost", priority=ALWAYS),
    Field("useful_ns", "GPU busy", Unit.NS, "cost"),
    Field("share_frac", "of waiting", Unit.FRAC, priority=ALWAYS),
    Field("threads"),
    *stats_fields("stats", count="waits"),
    *frame_fields("place.frame", "file line function"),
    Field("phase", value="place.phase"),
    Field("no_line_because", value="place.reason"),
    Field("within", value="place.within"),
)


def syncs_report(trace: Trace, result: SyncsResult) -> Report:
    """Rows of `syncs` as a report, the line under each."""
    table = table_of(
        _FIELDS,
        "what api idle_ns host_ns useful_ns share_frac count median_ns longest_ns",
        result.rows,
        result.total_matched,
        ((place_text(row.place),) for row in result.rows),
    )
    return trace_report(
        "syncs",
        trace,
        result.coverage,
        _header(result),
        table,
        host_waits=result.waits,
        host_ns=result.host_ns,
        longest_thread_ns=result.longest_thread_ns,
        useful_ns=result.useful_ns,
        idle_ns=result.idle_ns,
        span_ns=result.span_ns,
        stream_waits=result.stream_waits,
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
