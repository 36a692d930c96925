# SPDX-License-Identifier: Apache-2.0
"""The streams of each device: how busy they are, what they wait for, and which lines feed them."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.places import Place, covered, operation_places
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, OperationKind, combined, full
from profiling_lab.trace.extras import Stream
from profiling_lab.trace.operation_classes import device_tracks
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """One stream of one device of one process."""

    pid: int
    device: int
    """CUDA ordinal in the process"""
    stream: int
    kind: str
    """'default', 'non-blocking', 'null', '' where the file does not say"""
    priority: int | None
    operations: int
    kernels: int
    copies: int
    sets: int
    first_ns: int
    last_ns: int
    """start of the first and end of the last operation, on the clock of the file"""
    busy_ns: int
    """once, however operations of the stream overlap"""
    shared_ns: int
    """of it, while another stream of the device was busy"""
    gaps: int
    longest_gap_ns: int
    share_frac: float
    """of the GPU time of the device, summed over its operations"""
    places: tuple[Place, ...]

    @property
    def key(self) -> str:
        return f"{self.pid}/{self.device}/{self.stream}"

    @property
    def span_ns(self) -> int:
        return self.last_ns - self.first_ns

    @property
    def idle_ns(self) -> int:
        """Between the first and the last operation of the stream."""
        return self.span_ns - self.busy_ns


@dataclass(frozen=True, slots=True)
class DeviceStreams:
    """How many streams of a device were busy at once."""

    pid: int
    device: int
    streams: int
    span_ns: int
    """from the first operation's start to the last one's end"""
    level_ns: tuple[int, ...]
    """time with 0, 1, 2, .. busy streams; sums to `span_ns`"""

    @property
    def concurrency(self) -> float:
        """Busy streams on average, while any was busy."""
        busy = self.span_ns - self.level_ns[0]
        return sum(level * ns for level, ns in enumerate(self.level_ns)) / busy if busy else 0.0


@dataclass(frozen=True, slots=True)
class StreamsResult:
    """Streams by process and device, there the busiest first."""

    rows: tuple[StreamSummary, ...]
    devices: tuple[DeviceStreams, ...]
    coverage: Coverage
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def streams(trace: Trace, own: tuple[str, ...] | None = None, limit: int | None = None) -> StreamsResult:
    """Describe every stream that ran operations. own: see Ownership. limit: the most rows.

    Raises UsageError, and NotEnoughDataError if the trace has no GPU operation.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    own_row, coverage = covered(trace, own)
    operations = trace.operations
    device, devices = device_tracks(operations)
    lane, lanes = combined(device, operations.stream)
    size = len(lanes)
    busy, shared, levels = _analysis.lane_time_ns(
        operations.start_ns, operations.end_ns, device, lane, len(devices), size
    )
    duration = operations.duration_ns
    total, count = _analysis.sum_by_key(lane, duration, size)
    on_device = np.bincount(device, weights=duration, minlength=len(devices))
    first, last = _ends(lane, operations.start_ns, operations.end_ns, size)
    gaps, longest = _gaps(lane, operations.start_ns, operations.end_ns, size)
    kinds = {kind: np.bincount(lane[operations.kind == kind], minlength=size) for kind in OperationKind}
    pids = trace.pids
    ranked = sorted(
        range(size),
        key=lambda i: (pids[devices[lanes[i][0]][0]], devices[lanes[i][0]][1], -int(busy[i]), lanes[i][1]),
    )
    shown = ranked[:limit]
    places = operation_places(trace, own_row).by_key(lane, duration, shown)
    known = trace.source.streams()
    rows = []
    for i in shown:
        number, stream = lanes[i]
        process, ordinal = devices[number]
        about = known.get((pids[process], stream), Stream("", None))
        all_ns = float(on_device[number])
        rows.append(
            StreamSummary(
                pid=pids[process],
                device=ordinal,
                stream=stream,
                kind=about.kind,
                priority=about.priority,
                operations=int(count[i]),
                kernels=int(kinds[OperationKind.KERNEL][i]),
                copies=int(kinds[OperationKind.COPY][i]),
                sets=int(kinds[OperationKind.SET][i]),
                first_ns=int(first[i]),
                last_ns=int(last[i]),
                busy_ns=int(busy[i]),
                shared_ns=int(shared[i]),
                gaps=int(gaps[i]),
                longest_gap_ns=int(longest[i]),
                share_frac=int(total[i]) / all_ns if all_ns else 0.0,
                places=places[i],
            )
        )
    return StreamsResult(tuple(rows), _devices(trace, levels, devices, device, lanes), coverage, size)


def _ends(lane: I32, start_ns: I64, end_ns: I64, size: int) -> tuple[I64, I64]:
    first, last = full(size, np.iinfo(np.int64).max), full(size, np.iinfo(np.int64).min)
    np.minimum.at(first, lane, start_ns)
    np.maximum.at(last, lane, end_ns)
    return first, last


def _gaps(lane: I32, start_ns: I64, end_ns: I64, size: int) -> tuple[I64, I64]:
    """Per stream how often it had nothing to do between operations, and for how long at most."""
    opens, closes, track, _ = _analysis.gaps_between(start_ns, end_ns, lane)
    longest = np.zeros(size, dtype=np.int64)
    np.maximum.at(longest, track, closes - opens)
    return np.bincount(track, minlength=size), longest


def _devices(
    trace: Trace,
    levels: list[I64],
    devices: tuple[tuple[int, int], ...],
    device: I32,
    lanes: list[tuple[int, ...]],
) -> tuple[DeviceStreams, ...]:
    operations = trace.operations
    first, last = _ends(device, operations.start_ns, operations.end_ns, len(devices))
    found = []
    for number, (process, ordinal) in enumerate(devices):
        span_ns, busy = int(last[number] - first[number]), levels[number].tolist()
        found.append(
            DeviceStreams(
                pid=trace.pids[process],
                device=ordinal,
                streams=sum(on == number for on, _ in lanes),
                span_ns=span_ns,
                level_ns=(span_ns - sum(busy), *busy),
            )
        )
    return tuple(sorted(found, key=lambda row: (row.pid, row.device)))
