# SPDX-License-Identifier: Apache-2.0
"""The lanes of each GPU: why it was idle, its memory, and its streams."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.coverage import why_no_line
from profiling_lab.analysis.gaps.causes import CAUSES, LATENCY_NS, UNKNOWN, Cause
from profiling_lab.analysis.gaps.pieces import GapPieces, gap_pieces
from profiling_lab.report import numbers
from profiling_lab.report.html.lane import Lanes, SliceKind
from profiling_lab.report.html.memory_lanes import add_memory_lane
from profiling_lab.report.kernels.names import readable
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32, U8, OperationKind, dense, full, unique
from profiling_lab.trace.extras import LaunchShape
from profiling_lab.trace.operation_classes import OperationClass, device_tracks


def add_device_lanes(trace: Trace, own_row: I32, out: Lanes) -> None:
    """Add them to `out`. `own_row`: see Stacks.own_rows."""
    operations, found = trace.operations, trace.attribution
    device, devices = device_tracks(operations)
    shown = [readable(n, s) for n, s in zip(operations.names, operations.short_names, strict=True)]
    numbers = [out.names.add(s, n) for s, n in zip(shown, operations.names, strict=True)]
    name = np.array(numbers or [0], dtype=np.int32)[operations.name]
    tint, why = _operation_tints(trace), why_no_line(trace, own_row)
    memory = np.where(
        operations.kind == OperationKind.KERNEL,
        0,
        1 + operations.source_memory.astype(np.int64) * 8 + operations.target_memory,
    )
    shape = _shapes(trace, out)
    pieces = gap_pieces(trace)
    several = len(unique(operations.process)) > 1
    in_order = sorted(range(len(devices)), key=lambda i: (trace.pids[devices[i][0]], devices[i][1]))
    for number in in_order:
        process, ordinal = devices[number]
        pid = f" · pid {trace.pids[process]}" if several else ""
        out.groups.append(f"GPU {ordinal}{pid}")
        _add_idle(trace, pieces, number, out)
        add_memory_lane(trace, process, ordinal, out)
        here = np.flatnonzero(device == number)
        stream, ids = dense(operations.stream[here])
        for i in np.argsort(ids).tolist():
            out.add(
                "stream",
                f"stream {ids[i]}",
                here[stream == i],
                operations.start_ns,
                operations.end_ns,
                name,
                tint,
                found.stack,
                call=found.call,
                phase=found.line_phase,
                match=found.match,
                reason=why,
                bytes=operations.size_bytes,
                memory=memory,
                shape=shape,
            )


def _shapes(trace: Trace, out: Lanes) -> I32:
    """Per operation its launch shape, counted from 1; 0 where there is none."""
    found = trace.launch_shapes
    if found is None:
        return full(len(trace.operations), 0, np.int32)
    out.shapes = [_shape_text(shape) for shape in found.shapes]
    return (found.number + 1).astype(np.int32)


def _add_idle(trace: Trace, pieces: GapPieces, device: int, out: Lanes) -> None:
    """Idle time by cause; the pauses that every queue of kernels has are left white."""
    harmless = np.isin(pieces.cause, (Cause.BETWEEN, Cause.LATENCY))
    long = pieces.end_ns - pieces.start_ns > LATENCY_NS
    rows = np.flatnonzero((pieces.device == device) & (long | ~harmless))
    if not len(rows):
        return
    pair, distinct = dense(pieces.cause.astype(np.int64) << 32 | pieces.what)
    named = []
    for value in distinct.tolist():
        cause, what = CAUSES[Cause(value >> 32)], pieces.names[value & 0xFFFFFFFF]
        named.append(out.names.add(cause, f"{cause}: {what}" if what else ""))
    unknown = [number for number, text in CAUSES.items() if text in UNKNOWN]
    tint = np.where(np.isin(pieces.cause, unknown), SliceKind.IDLE_UNKNOWN, SliceKind.IDLE_HOST)
    tint = np.where(harmless | (pieces.cause == Cause.EVENT_WAIT), SliceKind.IDLE_DEVICE, tint)
    out.add(
        "idle",
        "idle, by cause",
        rows,
        pieces.start_ns,
        pieces.end_ns,
        np.array(named, dtype=np.int32)[pair],
        tint.astype(np.uint8),
        pieces.stack,
        exact=pieces.exact.astype(np.int32),
    )


def _shape_text(shape: LaunchShape) -> str:
    """`132 x 1 x 1 blocks of 256 x 1 x 1 threads, 40 registers a thread, 16.0 KiB shared a block`"""
    grid, block = (" x ".join(map(str, part)) for part in (shape.grid, shape.block))
    told = [f"{grid} blocks of {block} threads"]
    if shape.registers is not None:
        told.append(f"{shape.registers} registers a thread")
    if shape.shared_bytes:
        told.append(f"{numbers.size(shape.shared_bytes)} shared a block")
    return ", ".join(told)


def _operation_tints(trace: Trace) -> U8:
    """Kernels by phase; copies, sets and communication by what they are."""
    classes = trace.classes
    phase = trace.attribution.line_phase
    tint = np.where(classes == OperationClass.COMMUNICATION, SliceKind.COMMUNICATION, phase)
    tint = np.where(classes >= OperationClass.HOST_TO_DEVICE, SliceKind.COPY, tint)
    return np.where(classes == OperationClass.SET, SliceKind.SET, tint).astype(np.uint8)
