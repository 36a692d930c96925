# SPDX-License-Identifier: Apache-2.0
"""The tables of overlap: by class of operation, by stream, or by pair of operations."""

from __future__ import annotations

from typing import Literal

from profiling_lab.analysis.overlap.overlap import ClassRow, DeviceRow, OverlapResult, StreamRow
from profiling_lab.analysis.overlap.pairs import MEETING_NS, PairRow
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import trace_report
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.table import ALWAYS, SPARE, Report, Unit
from profiling_lab.trace import Trace

_CLASS = (
    Field("class", "class", value="name", priority=ALWAYS),
    Field("operations", "operations", Unit.COUNT, priority=SPARE),
    Field("busy_ns", "busy", Unit.NS, priority=ALWAYS),
    Field("hidden_ns", "overlapped with compute", Unit.NS),
    Field("exposed_ns", "exposed", Unit.NS),
    Field("alone_ns", "alone", Unit.NS),
    Field("with_ns", value=lambda row: dict(row.with_ns)),
)
_STREAM = (
    Field("stream", "stream", priority=ALWAYS),
    Field("operations", "operations", Unit.COUNT, priority=SPARE),
    Field("kernels", "kernels", Unit.COUNT, priority=SPARE),
    Field("busy_ns", "busy", Unit.NS, priority=ALWAYS),
    Field("shared_ns", "overlapped with other streams", Unit.NS),
)
_PAIR = (
    Field("name", "operation", priority=ALWAYS),
    Field("other", "overlapped with", priority=ALWAYS),
    Field("times", "times", Unit.COUNT, priority=SPARE),
    Field("together_ns", "together", Unit.NS, priority=ALWAYS),
)
_TABLES = {
    "class": (_CLASS, "class operations busy_ns busy_frac hidden_ns exposed_ns alone_ns"),
    "stream": (_STREAM, "stream operations kernels busy_ns busy_frac shared_ns"),
    "pair": (_PAIR, "name other times together_ns busy_frac"),
}
_Row = ClassRow | StreamRow | PairRow


def overlap_report(
    trace: Trace,
    result: OverlapResult,
    by: Literal["class", "stream", "pair"],
    limit: int | None = None,
    pairs: tuple[PairRow, ...] = (),
) -> Report:
    """`overlap` as a report with a row per class of operation, per stream, or per pair of operations."""
    rows_by: dict[str, tuple[_Row, ...]] = {
        "class": result.classes,
        "stream": result.streams,
        "pair": pairs,
    }
    rows, (fields, columns) = rows_by[by], _TABLES[by]
    shown = rows[:limit]
    several = "pid device" if len(result.devices) > 1 else ""
    columns = f"{several} {columns}"
    table = table_of(_with_wall(fields, result), columns, shown, len(rows), map(_details, shown))
    header = (*_header(result), *_no_pairs(by, pairs))
    devices = [_device_data(device) for device in result.devices]
    return trace_report("overlap", trace, result.coverage, header, table, by=by, devices=devices)


def _with_wall(fields: tuple[Field, ...], result: OverlapResult) -> tuple[Field, ...]:
    span = {(device.pid, device.device): device.span_ns for device in result.devices}

    def busy_frac(row: _Row) -> float:
        wall = span[row.pid, row.device]
        busy_ns = row.together_ns if isinstance(row, PairRow) else row.busy_ns
        return busy_ns / wall if wall else 0.0

    return (
        Field("key"),
        Field("pid", "process", priority=ALWAYS),
        Field("device", "GPU", priority=ALWAYS),
        *fields,
        Field("busy_frac", "of wall", Unit.FRAC, value=busy_frac, for_people_only=True, priority=ALWAYS),
        Field("span_ns", value=lambda row: span[row.pid, row.device]),
    )


def _no_pairs(by: str, pairs: tuple[PairRow, ...]) -> tuple[str, ...]:
    if by != "pair" or pairs:
        return ()
    return (f"no operations of two streams overlapped for {numbers.time(MEETING_NS)} or more",)


def _details(row: _Row) -> tuple[str, ...]:
    with_ns = row.with_ns if isinstance(row, ClassRow) else ()
    return tuple(f"with {name}: {numbers.time(ns)}" for name, ns in with_ns)


def _header(result: OverlapResult) -> tuple[str, ...]:
    lines = []
    for device in result.devices:
        mine = [
            stream for stream in result.streams if (stream.pid, stream.device) == (device.pid, device.device)
        ]
        busy = sum(device.level_ns[1:])
        lines.append(
            f"process {device.pid}, GPU {device.device}: {numbers.counted(len(mine), 'stream')}, "
            f"busy {numbers.time(busy)} of {numbers.time(device.span_ns)}"
        )
        if len(mine) == 1:
            lines.append("  all work is on one stream: copies, compute and communication wait for each other")
        else:
            several = sum(device.level_ns[2:])
            lines.append(
                f"  several streams at once: {numbers.time(several)}, "
                f"{numbers.share(several / busy if busy else 0.0)} of the busy time"
            )
        if device.same_stream_ns:
            lines.append(f"  operations of one stream overlap by {numbers.time(device.same_stream_ns)}")
    return tuple(lines)


def _device_data(device: DeviceRow) -> dict[str, object]:
    return {
        "pid": device.pid,
        "device": device.device,
        "span_ns": device.span_ns,
        "level_ns": list(device.level_ns),
        "same_stream_ns": device.same_stream_ns,
    }
