# SPDX-License-Identifier: Apache-2.0
"""The tables of overlap: by class of operation, by stream, or by pair of operations."""

from __future__ import annotations

from typing import Literal

from profiling_lab.analysis.overlap import ClassRow, DeviceRow, OverlapResult, StreamRow
from profiling_lab.analysis.overlap_pairs import MEETING_NS, PairRow
from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.trace import Trace

_CLASS_COLUMNS = (
    Column("name", "class"),
    Column("operations", "operations", Unit.COUNT),
    Column("busy_ns", "busy", Unit.NS),
    Column("busy_frac", "of wall", Unit.FRAC),
    Column("hidden_ns", "beside compute", Unit.NS),
    Column("exposed_ns", "exposed", Unit.NS),
    Column("alone_ns", "alone", Unit.NS),
)
_STREAM_COLUMNS = (
    Column("stream", "stream"),
    Column("operations", "operations", Unit.COUNT),
    Column("kernels", "kernels", Unit.COUNT),
    Column("busy_ns", "busy", Unit.NS),
    Column("busy_frac", "of wall", Unit.FRAC),
    Column("shared_ns", "beside other streams", Unit.NS),
)

_PAIR_COLUMNS = (
    Column("name", "operation"),
    Column("beside", "beside"),
    Column("times", "times", Unit.COUNT),
    Column("together_ns", "together", Unit.NS),
    Column("busy_frac", "of wall", Unit.FRAC),
)
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
    found = rows_by[by]
    shown = found[:limit]
    columns = {"class": _CLASS_COLUMNS, "stream": _STREAM_COLUMNS, "pair": _PAIR_COLUMNS}[by]
    if len(result.devices) > 1:
        columns = (Column("pid", "process"), Column("device", "GPU"), *columns)
    span = {(device.pid, device.device): device.span_ns for device in result.devices}
    rows = tuple(tuple(_value(row, column.name, span) for column in columns) for row in shown)
    return Report(
        command="overlap",
        trace={"path": str(trace.path), "by": by, "devices": [_device_data(d) for d in result.devices]},
        header=(*coverage_header(trace, result.coverage), *_header(result), *_no_pairs(by, pairs)),
        table=Table(
            columns, rows, len(found), tuple(map(_details, shown)), tuple(_data(row, span) for row in shown)
        ),
        coverage=coverage_data(result.coverage),
    )


def _no_pairs(by: str, pairs: tuple[PairRow, ...]) -> tuple[str, ...]:
    if by != "pair" or pairs:
        return ()
    return (f"no operations of two streams ran side by side for {numbers.time(MEETING_NS)} or more",)


def _value(row: _Row, name: str, span: dict[tuple[int, int], int]) -> Value:
    if name == "busy_frac":
        wall = span[row.pid, row.device]
        busy_ns = row.together_ns if isinstance(row, PairRow) else row.busy_ns
        return busy_ns / wall if wall else 0.0
    value: Value = getattr(row, name)
    return str(value) if name in ("stream", "pid", "device") else value


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


def _data(row: _Row, span: dict[tuple[int, int], int]) -> dict[str, object]:
    shared: dict[str, object] = {"key": row.key, "pid": row.pid, "device": row.device}
    if isinstance(row, PairRow):
        own: dict[str, object] = {
            "name": row.name,
            "beside": row.beside,
            "times": row.times,
            "together_ns": row.together_ns,
        }
    elif isinstance(row, StreamRow):
        own = {
            "stream": row.stream,
            "operations": row.operations,
            "kernels": row.kernels,
            "busy_ns": row.busy_ns,
            "shared_ns": row.shared_ns,
        }
    else:
        own = {
            "class": row.name,
            "operations": row.operations,
            "busy_ns": row.busy_ns,
            "hidden_ns": row.hidden_ns,
            "exposed_ns": row.exposed_ns,
            "alone_ns": row.alone_ns,
            "with_ns": dict(row.with_ns),
        }
    return shared | own | {"span_ns": span[row.pid, row.device]}
