# SPDX-License-Identifier: Apache-2.0
"""The table of streams."""

from __future__ import annotations

from profiling_lab.analysis.overlap.streams import DeviceStreams, StreamsResult, StreamSummary
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.places import place_fields, place_lines
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, Report, Unit
from profiling_lab.trace import Trace


def streams_report(trace: Trace, result: StreamsResult, lines: int = 2) -> Report:
    """Rows of `streams` as a report; process and device are shown where there are several."""
    table = table_of(
        _fields(trace.first_ns, len(result.devices) > 1),
        "stream busy_ns share_frac shared_ns idle_ns longest_gap_ns kernels copies sets first_ns last_ns",
        result.rows,
        result.total_matched,
        (place_lines(row.places, lines) for row in result.rows),
    )
    header, devices = map(_device_line, result.devices), [_device_data(device) for device in result.devices]
    return trace_report("streams", trace, result.coverage, header, table, devices=devices)


def _fields(zero_ns: int, several: bool) -> tuple[Field, ...]:
    return (
        Field("key"),
        Field("pid"),
        Field("device"),
        Field("stream", "stream", cell=lambda row: _name(row, several), priority=ALWAYS),
        Field("kind"),
        Field("priority"),
        Field("operations"),
        Field("kernels", "kernels", Unit.COUNT),
        Field("copies", "copies", Unit.COUNT, priority=SPARE),
        Field("sets", "sets", Unit.COUNT, priority=SPARE),
        Field(
            "first_ns",
            "first",
            Unit.NS,
            "clock",
            cell=lambda row: row.first_ns - zero_ns,
            priority=FIRST_TO_GO,
        ),
        Field(
            "last_ns", "last", Unit.NS, "clock", cell=lambda row: row.last_ns - zero_ns, priority=FIRST_TO_GO
        ),
        Field("span_ns"),
        Field("busy_ns", "busy", Unit.NS, "time", priority=ALWAYS),
        Field("idle_ns", "idle", Unit.NS, "time"),
        Field("shared_ns", "shared", Unit.NS, "time"),
        Field("gaps"),
        Field("longest_gap_ns", "max gap", Unit.NS, "time"),
        Field("share_frac", "of GPU time", Unit.FRAC, priority=ALWAYS),
        *place_fields(),
    )


def _name(row: StreamSummary, several: bool) -> str:
    """`7 (non-blocking, priority -5) on GPU 0 of pid 12`"""
    about = [row.kind] if row.kind else []
    about += [f"priority {row.priority}"] if row.priority else []
    name = f"{row.stream} ({', '.join(about)})" if about else str(row.stream)
    return f"{name} on GPU {row.device} of pid {row.pid}" if several else name


def _device_line(device: DeviceStreams) -> str:
    parts = ", ".join(
        f"{level if level else 'none'} {numbers.share(ns / device.span_ns if device.span_ns else 0.0)}"
        for level, ns in enumerate(device.level_ns)
        if ns or level < 2
    )
    streams, span = numbers.counted(device.streams, "stream"), numbers.time(device.span_ns)
    return (
        f"GPU {device.device} of pid {device.pid}: {streams} in {span}; busy at once: {parts}; "
        f"{device.concurrency:.2f} on average while any was"
    )


def _device_data(device: DeviceStreams) -> dict[str, object]:
    return {
        "pid": device.pid,
        "device": device.device,
        "streams": device.streams,
        "span_ns": device.span_ns,
        "level_ns": list(device.level_ns),
        "concurrency": round(device.concurrency, 6),
    }
