# SPDX-License-Identifier: Apache-2.0
"""The table of streams."""

from __future__ import annotations

from profiling_lab.analysis.streams import DeviceStreams, StreamRow, StreamsResult
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.places import place_lines, places_data
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Trace


def streams_report(trace: Trace, result: StreamsResult, lines: int = 2) -> Report:
    """Rows of `streams` as a report; process and device are shown where there are several."""
    columns = (
        Column("stream", "stream"),
        Column("busy_ns", "busy", Unit.NS, "time"),
        Column("share_frac", "of GPU time", Unit.FRAC),
        Column("shared_ns", "shared", Unit.NS, "time"),
        Column("idle_ns", "idle", Unit.NS, "time"),
        Column("longest_gap_ns", "max gap", Unit.NS, "time"),
        Column("kernels", "kernels", Unit.COUNT),
        Column("copies", "copies", Unit.COUNT),
        Column("sets", "sets", Unit.COUNT),
        Column("begins_ns", "first", Unit.NS, "clock"),
        Column("ends_ns", "last", Unit.NS, "clock"),
    )
    several = len(result.devices) > 1
    rows = tuple(_values(row, trace.first_ns, several) for row in result.rows)
    return Report(
        command="streams",
        trace={"path": str(trace.path), "devices": [_device_data(device) for device in result.devices]},
        header=(*coverage_header(trace, result.coverage), *map(_device_line, result.devices)),
        table=Table(
            columns,
            rows,
            result.total_matched,
            tuple(place_lines(row.places, lines) for row in result.rows),
            tuple(map(_data, result.rows)),
        ),
        coverage=coverage_data(result.coverage),
    )


def _values(row: StreamRow, zero_ns: int, several: bool) -> tuple[Value, ...]:
    return (
        _name(row, several),
        row.busy_ns,
        row.share_frac,
        row.shared_ns,
        row.idle_ns,
        row.longest_gap_ns,
        row.kernels,
        row.copies,
        row.sets,
        row.first_ns - zero_ns,
        row.last_ns - zero_ns,
    )


def _name(row: StreamRow, several: bool) -> str:
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


def _data(row: StreamRow) -> dict[str, object]:
    return {
        "key": row.key,
        "pid": row.pid,
        "device": row.device,
        "stream": row.stream,
        "kind": row.kind,
        "priority": row.priority,
        "operations": row.operations,
        "kernels": row.kernels,
        "copies": row.copies,
        "sets": row.sets,
        "first_ns": row.first_ns,
        "last_ns": row.last_ns,
        "span_ns": row.span_ns,
        "busy_ns": row.busy_ns,
        "idle_ns": row.idle_ns,
        "shared_ns": row.shared_ns,
        "gaps": row.gaps,
        "longest_gap_ns": row.longest_gap_ns,
        "share_frac": round(row.share_frac, 6),
        **places_data(row.places),
    }
