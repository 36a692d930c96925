# SPDX-License-Identifier: Apache-2.0
"""What the GPU did at the same time: copies, compute and communication, and its streams."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage, coverage
from profiling_lab.analysis.device_spans import device_spans
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, OperationKind, dense
from profiling_lab.trace.operation_classes import (
    CLASS_NAMES,
    OperationClass,
    device_tracks,
)
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One class of operations on one device. Time in which several of them ran counts once."""

    key: str
    pid: int
    device: int
    name: str
    """of operation_classes.CLASS_NAMES"""
    operations: int
    busy_ns: int
    hidden_ns: int | None
    """while compute ran as well; None for compute itself"""
    alone_ns: int
    """while nothing else ran"""
    with_ns: tuple[tuple[str, int], ...]
    """the time shared with each other class, in the order of CLASS_NAMES; classes without any are left out"""

    @property
    def exposed_ns(self) -> int | None:
        """The part that compute does not hide."""
        return None if self.hidden_ns is None else self.busy_ns - self.hidden_ns


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream of one device."""

    key: str
    pid: int
    device: int
    stream: int
    operations: int
    kernels: int
    busy_ns: int
    shared_ns: int
    """while another stream of the device was busy too"""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """How many streams of a device were busy at once."""

    pid: int
    device: int
    span_ns: int
    """from its first operation's start to its last one's end, as far as the window has it"""
    level_ns: tuple[int, ...]
    """time with 0, 1, 2, .. busy streams; sums to `span_ns`"""
    same_stream_ns: int
    """what operations of one stream last together beyond the time they cover: a kernel launched before the
    one ahead of it had ended (programmatic dependent launch)"""


@dataclass(frozen=True, slots=True)
class OverlapResult:
    """Classes by device, streams by busy time, devices in order."""

    classes: tuple[ClassRow, ...]
    streams: tuple[StreamRow, ...]
    devices: tuple[DeviceRow, ...]
    coverage: Coverage


def overlap(trace: Trace) -> OverlapResult:
    """Measure overlap per device of each process.

    Raises NotEnoughDataError if the trace has no GPU operation.
    """
    covered = coverage(trace, trace.stacks.own_rows(Ownership()))
    operations = trace.operations
    device, _ = device_tracks(operations)
    spans = device_spans(trace)
    devices, span_ns = spans.devices, spans.span_ns
    classes = trace.classes
    sets = spans.per_device(
        _analysis.set_time_ns(
            operations.start_ns,
            operations.end_ns,
            device,
            classes,
            spans.start_ns,
            spans.end_ns,
            spans.number,
            len(OperationClass),
        )
    )
    pids = trace.pids
    in_order = sorted(range(len(devices)), key=lambda number: (pids[devices[number][0]], devices[number][1]))
    class_rows = [
        row
        for number in in_order
        for row in _class_rows(
            pids[devices[number][0]],
            devices[number][1],
            sets[number],
            np.bincount(classes[device == number], minlength=len(OperationClass)),
        )
    ]
    stream_rows, levels, twice_ns = _streams(trace, device, devices)
    device_rows = []
    for number in in_order:
        busy = levels[number].tolist()
        device_rows.append(
            DeviceRow(
                pid=pids[devices[number][0]],
                device=devices[number][1],
                span_ns=int(span_ns[number]),
                level_ns=(int(span_ns[number]) - sum(busy), *busy),
                same_stream_ns=twice_ns[number],
            )
        )
    return OverlapResult(tuple(class_rows), tuple(stream_rows), tuple(device_rows), covered)


def _class_rows(pid: int, device: int, sets_ns: I64, counts: I64) -> list[ClassRow]:
    """From the time of each set of classes, as `set_time_ns` gives it."""
    members = np.arange(len(sets_ns))
    has = [(members >> number) & 1 == 1 for number in range(len(OperationClass))]
    compute = has[OperationClass.COMPUTE]
    rows = []
    for number, name in enumerate(CLASS_NAMES):
        if not counts[number]:
            continue
        mine = has[number]
        alone = int(sets_ns[1 << number])
        busy = int(sets_ns[mine].sum())
        shared = (
            (other, int(sets_ns[mine & has[i]].sum())) for i, other in enumerate(CLASS_NAMES) if i != number
        )
        hidden = None if number == OperationClass.COMPUTE else int(sets_ns[mine & compute].sum())
        rows.append(
            ClassRow(
                key=f"{pid}/{device}/{name}",
                pid=pid,
                device=device,
                name=name,
                operations=int(counts[number]),
                busy_ns=busy,
                hidden_ns=hidden,
                alone_ns=alone,
                with_ns=tuple((other, ns) for other, ns in shared if ns),
            )
        )
    return rows


def _streams(
    trace: Trace, device: np.ndarray, devices: tuple[tuple[int, int], ...]
) -> tuple[list[StreamRow], list[I64], list[int]]:
    """Rows of streams, per device the time by busy streams, and what its streams ran twice at once."""
    operations = trace.operations
    stream, stream_ids = dense(operations.stream)
    lane, lanes = dense(device.astype(np.int64) * len(stream_ids) + stream)
    busy, shared, levels = _analysis.lane_time_ns(
        operations.start_ns, operations.end_ns, device, lane, len(devices), len(lanes)
    )
    total, count = _analysis.sum_by_key(lane, operations.duration_ns, len(lanes))
    kernels = np.bincount(lane[operations.kind == OperationKind.KERNEL], minlength=len(lanes))
    twice = [0] * len(devices)
    rows = []
    for i, number in enumerate(lanes.tolist()):
        on, stream_number = divmod(number, len(stream_ids))
        process, ordinal = devices[on]
        twice[on] += int(total[i] - busy[i])
        stream_id = int(stream_ids[stream_number])
        rows.append(
            StreamRow(
                key=f"{trace.pids[process]}/{ordinal}/{stream_id}",
                pid=trace.pids[process],
                device=ordinal,
                stream=stream_id,
                operations=int(count[i]),
                kernels=int(kernels[i]),
                busy_ns=int(busy[i]),
                shared_ns=int(shared[i]),
            )
        )
    return sorted(rows, key=lambda row: (-row.busy_ns, row.key)), levels, twice
