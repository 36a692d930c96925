# SPDX-License-Identifier: Apache-2.0
"""The lanes of the timeline: idle time by cause and streams per GPU; lines, calls and ranges per thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.report import numbers
from profiling_lab.report.html.names import Names
from profiling_lab.report.kernel_names import readable
from profiling_lab.report.lines import shown_path
from profiling_lab.trace import Trace
from profiling_lab.trace.attribution import BLEED_NS
from profiling_lab.trace.columns import I32, I64, U8, OperationKind, dense, full
from profiling_lab.trace.coverage import why_no_line
from profiling_lab.trace.gap_causes import CAUSES, LATENCY_NS, UNKNOWN, Cause
from profiling_lab.trace.gap_pieces import gap_pieces
from profiling_lab.trace.host_activity import Doing, call_kinds
from profiling_lab.trace.operation_classes import OperationClass, device_tracks, operation_classes
from profiling_lab.trace.phases import LinePhase, Phase
from profiling_lab.trace.read_launch_shapes import LaunchShape, read_launch_shapes

THREADS_AT_MOST = 64
DEPTH_AT_MOST = 16
_FARTHEST_NS = 1 << 61  # ranges that never ended, and damaged times


class Tint(IntEnum):
    """What a slice is, as far as its colour tells."""

    FORWARD = LinePhase.FORWARD
    BACKWARD = LinePhase.BACKWARD
    RECOMPUTE = LinePhase.RECOMPUTE
    OPTIMIZER = LinePhase.OPTIMIZER
    UNKNOWN_PHASE = LinePhase.UNKNOWN
    COMMUNICATION = 5
    COPY = 6
    SET = 7
    CALL = 8
    WAIT = 9
    ALLOCATION = 10
    LINE = 11
    RANGE = 12
    IDLE_HOST = 13
    IDLE_DEVICE = 14
    IDLE_UNKNOWN = 15


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the timeline; events are sorted by start, times count from the beginning of the span."""

    group: int
    kind: str
    """'idle', 'stream', 'line', 'calls' or 'ranges'"""
    label: str
    start_ns: I64
    end_ns: I64
    name: I32
    """row of the page's names"""
    tint: U8
    stack: I32
    """row of Trace.stacks, 0 without one"""
    rows: I64
    """rows of the table of the trace that the lane shows"""
    more: dict[str, npt.NDArray[np.integer]] = field(default_factory=dict)
    """what only lanes of this kind have, by name"""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(slots=True)
class Lanes:
    """All lanes with what they share."""

    origin_ns: int
    span_ns: int
    names: Names
    groups: list[str]
    lanes: list[Lane]
    notes: list[str]
    """what was left out, and why"""
    shapes: list[str]
    """how kernels were launched: what `shape` of a stream's events counts from 1, 0 being unknown"""


def lanes_of(trace: Trace, own_row: I32) -> Lanes:
    """Every event of a trace in its lane. `own_row`: see Stacks.own_rows."""
    origin_ns, end_ns = _span(trace)
    out = Lanes(origin_ns, end_ns - origin_ns, Names(), [], [], [], [])
    builder = _Builder(trace, own_row, out)
    if len(trace.operations):
        builder.devices()
    builder.threads()
    return out


def _span(trace: Trace) -> tuple[int, int]:
    """From the first thing recorded to the last one, leaving out times that no clock shows."""
    first, last = [], []
    for table in (trace.operations, trace.calls, trace.ranges):
        start = table.start_ns[np.abs(table.start_ns) < _FARTHEST_NS]
        end = table.end_ns[np.abs(table.end_ns) < _FARTHEST_NS]
        if len(start):
            first.append(int(start.min()))
            last.append(max(int(start.max()), int(end.max(initial=start.max()))))
    return (min(first), max(last)) if first else (0, 0)


class _Builder:
    def __init__(self, trace: Trace, own_row: I32, out: Lanes) -> None:
        self.trace, self.own_row, self.out = trace, own_row, out

    def add(
        self,
        kind: str,
        label: str,
        rows: npt.NDArray[np.integer],
        start_ns: I64,
        end_ns: I64,
        name: I32,
        tint: U8,
        stack: I32,
        **more: npt.NDArray[np.integer],
    ) -> None:
        """One lane of the newest group from `rows` of columns that hold more than the lane."""
        low, high = self.out.origin_ns, self.out.origin_ns + self.out.span_ns
        start, end = start_ns[rows].clip(low, high) - low, end_ns[rows].clip(low, high) - low
        order = np.lexsort((-end, start))
        rows, start = rows[order], start[order]
        self.out.lanes.append(
            Lane(
                group=len(self.out.groups) - 1,
                kind=kind,
                label=label,
                start_ns=start,
                end_ns=np.maximum(start, end[order]),
                name=name[rows],
                tint=tint[rows],
                stack=stack[rows],
                rows=rows.astype(np.int64),
                more={key: column[rows] for key, column in more.items()},
            )
        )

    def devices(self) -> None:
        trace, operations, found = self.trace, self.trace.operations, self.trace.attribution
        device, devices = device_tracks(operations)
        shown = [readable(n, s) for n, s in zip(operations.names, operations.short_names, strict=True)]
        numbers = [self.out.names.add(s, n) for s, n in zip(shown, operations.names, strict=True)]
        name = np.array(numbers or [0], dtype=np.int32)[operations.name]
        tint, why = _operation_tints(trace), why_no_line(trace, self.own_row)
        memory = np.where(
            operations.kind == OperationKind.KERNEL,
            0,
            1 + operations.source_memory.astype(np.int64) * 8 + operations.target_memory,
        )
        shape = self._shapes()
        several = len(np.unique(operations.process)) > 1
        in_order = sorted(range(len(devices)), key=lambda i: (trace.pids[devices[i][0]], devices[i][1]))
        for number in in_order:
            process, ordinal = devices[number]
            pid = f" · pid {trace.pids[process]}" if several else ""
            self.out.groups.append(f"GPU {ordinal}{pid}")
            self._idle(number)
            here = np.flatnonzero(device == number)
            stream, ids = dense(operations.stream[here])
            for i in np.argsort(ids).tolist():
                self.add(
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

    def _shapes(self) -> I32:
        """Per operation its launch shape, counted from 1; 0 where there is none."""
        found = read_launch_shapes(self.trace)
        if found is None:
            return full(len(self.trace.operations), 0, np.int32)
        self.out.shapes = [_shape_text(shape) for shape in found.shapes]
        return (found.number + 1).astype(np.int32)

    def _idle(self, device: int) -> None:
        """Idle time by cause; the pauses that every queue of kernels has are left white."""
        pieces = gap_pieces(self.trace)
        harmless = np.isin(pieces.cause, (Cause.BETWEEN, Cause.LATENCY))
        long = pieces.end_ns - pieces.start_ns > LATENCY_NS
        rows = np.flatnonzero((pieces.device == device) & (long | ~harmless))
        if not len(rows):
            return
        pair, distinct = dense(pieces.cause.astype(np.int64) << 32 | pieces.what)
        named = []
        for value in distinct.tolist():
            cause, what = CAUSES[Cause(value >> 32)], pieces.names[value & 0xFFFFFFFF]
            named.append(self.out.names.add(cause, f"{cause}: {what}" if what else ""))
        unknown = [number for number, text in CAUSES.items() if text in UNKNOWN]
        tint = np.where(np.isin(pieces.cause, unknown), Tint.IDLE_UNKNOWN, Tint.IDLE_HOST)
        tint = np.where(harmless | (pieces.cause == Cause.EVENT_WAIT), Tint.IDLE_DEVICE, tint)
        self.add(
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

    def threads(self) -> None:
        trace, calls, ranges = self.trace, self.trace.calls, self.trace.ranges
        thread = np.concatenate([calls.thread, ranges.thread])
        process = np.concatenate([calls.process, ranges.process])
        if not len(thread):
            return
        count = np.bincount(thread)
        first_row = np.zeros(len(count), dtype=np.int64)
        first_row[thread[::-1]] = np.arange(len(thread))[::-1]
        pids = [trace.pids[p] for p in process[first_row].tolist()]
        # Main threads first, since that is where people look first; the others by their number of events.
        is_main = np.array([tid == pid for tid, pid in zip(trace.tids, pids, strict=False)])
        busiest = np.lexsort((-count, ~is_main, count == 0))[: int((count > 0).sum())]
        if len(busiest) > THREADS_AT_MOST:
            left = int(count[busiest[THREADS_AT_MOST:]].sum())
            self.out.notes.append(
                f"{len(busiest) - THREADS_AT_MOST} threads with the fewest events are not shown: "
                f"{left:,} calls and ranges"
            )
        several = len(np.unique(process)) > 1
        deep = 0
        for number in busiest[:THREADS_AT_MOST].tolist():
            pid, tid = pids[number], trace.tids[number]
            of = f" · pid {pid}" if several else ""
            self.out.groups.append(f"thread {tid}{' (main)' if tid == pid else ''}{of}")
            self._line_lane(number)
            self._call_lanes(number)
            deep += self._range_lanes(number)
        if deep:
            self.out.notes.append(f"{deep:,} ranges nested deeper than {DEPTH_AT_MOST} levels are not shown")

    def _call_lanes(self, thread: int) -> None:
        calls = self.trace.calls
        name, tint, depth = self._of_calls
        rows = np.flatnonzero(calls.thread == thread)
        for level, here in _by_depth(rows, depth):
            label = "calls inside calls" if level else "CUDA calls"
            self.add("calls", label, here, calls.start_ns, calls.end_ns, name, tint, calls.stack)

    @cached_property
    def _of_calls(self) -> tuple[I32, U8, I32]:
        """Per call its name, its tint, and whether it is inside of another one."""
        calls = self.trace.calls
        kinds = call_kinds(calls)
        tint = np.where(kinds == Doing.WAIT, Tint.WAIT, Tint.CALL)
        tint = np.where(np.isin(kinds, (Doing.ALLOCATOR, Doing.CODE_LOADING)), Tint.ALLOCATION, tint)
        depth = _depths(calls.start_ns, calls.end_ns, calls.thread)
        name = self.out.names.add_all(calls.names)[calls.name]
        return name, tint.astype(np.uint8), np.minimum(depth, 1)

    def _range_lanes(self, thread: int) -> int:
        """The lanes of a thread's ranges by depth; says how many ranges are too deep for one."""
        ranges, deep = self.trace.ranges, 0
        name, tint, lane, keys, depth = self._of_ranges
        noun = "operators" if self.trace.recorder == "torch.profiler" else "NVTX"
        for number in [i for i, key in enumerate(keys) if key >> 32 == thread]:
            rows = np.flatnonzero(lane == number)
            deep += int((depth[rows] >= DEPTH_AT_MOST).sum())
            domain = ranges.domains.get(int(ranges.domain[rows[0]]), "")
            for level, here in _by_depth(rows[depth[rows] < DEPTH_AT_MOST], depth):
                label = f"{domain or noun}{f' · level {level + 1}' if level else ''}"
                self.add("ranges", label, here, ranges.start_ns, ranges.end_ns, name, tint, ranges.stack)
        return deep

    @cached_property
    def _of_ranges(self) -> tuple[I32, U8, I32, list[int], I32]:
        """Per range its name and tint, its number among (thread, domain), which these are, and its depth."""
        ranges = self.trace.ranges
        # Ranges of different domains do not nest in each other.
        lane, keys = dense(ranges.thread.astype(np.int64) << 32 | (ranges.domain & 0xFFFFFFFF))
        depth = _depths(ranges.start_ns, ranges.end_ns, lane)
        tint = np.full(len(ranges), Tint.RANGE, dtype=np.uint8)
        return self.out.names.add_all(ranges.names)[ranges.name], tint, lane, keys.tolist(), depth

    def _line_lane(self, thread: int) -> None:
        """Runs of calls that one line of the user's made: from the first start to the last end."""
        trace, calls = self.trace, self.trace.calls
        rows = np.flatnonzero(calls.thread == thread)
        stack, backward = self._answers
        line = self.own_row[stack]
        rows = rows[line[rows] > 0]
        if not len(rows):
            return
        rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
        key = trace.stacks.frame[line[rows]].astype(np.int64) * 2 + backward[rows]
        starts = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        ends = np.append(starts[1:], len(rows)) - 1
        numbers, distinct = dense(key[starts])
        named = []
        for value in distinct.tolist():
            frame = trace.stacks.frames[value >> 1]
            where = f"{shown_path(frame.file)}:{frame.line}"
            text = f"backward of {where}" if value & 1 else where
            named.append(self.out.names.add(text, f"{text} {frame.function}"))
        end_ns = np.maximum.reduceat(calls.end_ns[rows], starts)
        self.add(
            "line",
            "Python line",
            np.arange(len(starts)),
            calls.start_ns[rows[starts]],
            end_ns,
            np.array(named, dtype=np.int32)[numbers],
            np.where(key[starts] & 1, Tint.BACKWARD, Tint.LINE).astype(np.uint8),
            line[rows[starts]],
            calls=(ends - starts + 1),
        )

    @cached_property
    def _answers(self) -> tuple[I32, npt.NDArray[np.bool_]]:
        """Per call the stack that answers for it, in backward that of the forward line, and whether it is."""
        calls = self.trace.calls
        stack, backward = calls.stack.copy(), np.zeros(len(calls), dtype=bool)
        if len(self.trace.operations):
            found = self.trace.attribution
            known = (found.call >= 0) & (found.stack > 0)
            stack[found.call[known]] = found.stack[known]
            backward[found.call[known]] = found.phase[known] == Phase.BACKWARD
        return stack, backward


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
    classes = operation_classes(trace.operations)
    phase = trace.attribution.line_phase
    tint = np.where(classes == OperationClass.COMMUNICATION, Tint.COMMUNICATION, phase)
    tint = np.where(classes >= OperationClass.HOST_TO_DEVICE, Tint.COPY, tint)
    return np.where(classes == OperationClass.SET, Tint.SET, tint).astype(np.uint8)


def _depths(start_ns: I64, end_ns: I64, track: I32) -> I32:
    """How many ranges of the same track lie around each."""
    nothing = np.empty(0, dtype=np.int64)
    parent, _, _ = _analysis.contain(start_ns, end_ns, track, nothing, nothing.astype(np.int32), BLEED_NS)
    depth = full(len(parent), 0, np.int32)
    around = parent.copy()
    while (inside := around >= 0).any():
        depth[inside] += 1
        around[inside] = parent[around[inside]]
    return depth


def _by_depth(
    rows: npt.NDArray[np.intp], depth: npt.NDArray[np.integer]
) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    for level in np.unique(depth[rows]).tolist():
        yield level, rows[depth[rows] == level]
