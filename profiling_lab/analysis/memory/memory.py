# SPDX-License-Identifier: Apache-2.0
"""What was alive in GPU memory at one moment, by line or by kind. The rows sum to what torch counts."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from profiling_lab.analysis.memory.devices import DeviceMemory, Place, device_memories
from profiling_lab.analysis.memory.kinds import KIND_NAMES, Kind
from profiling_lab.analysis.memory.pressure import (
    Cached,
    OutOfMemory,
    cached_at,
    out_of_memory,
    reserved_peak,
)
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.memory_history import TorchCounts
from profiling_lab.trace.trace import Trace

By: TypeAlias = Literal["line", "kind"]
GROUPINGS: tuple[By, ...] = get_args(By)
At: TypeAlias = Literal["peak", "end"]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a row: of one kind from one line."""

    place: Place
    kind: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Allocations of one line and phase, or of one kind, that were alive together."""

    key: str
    pid: int
    device: int
    place: Place | None
    """None where rows are kinds"""
    kind: str
    """the kind with most bytes"""
    bytes: int
    """of blocks, as torch counts them"""
    requested_bytes: int
    blocks: int
    largest_bytes: int
    share_frac: float
    """of all that was alive on the device"""
    parts: tuple[Part, ...]
    """the largest first"""


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One device as one process used it."""

    pid: int
    device: int
    at_ns: int
    """the moment of the rows, since the trace's first event"""
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    peak_at_ns: int
    reserved_peak_bytes: int
    kinds: tuple[tuple[str, int], ...]
    """bytes by kind at that moment, the largest first"""
    cached: Cached
    """at that moment"""
    cached_at_reserved_peak: Cached
    out_of_memory: tuple[tuple[OutOfMemory, Place], ...]
    events: int
    is_complete: bool
    """nothing was allocated before the history, and no event of it was dropped: the peak is exact"""
    is_cut: bool
    """older events were dropped: an earlier peak may have been higher"""
    wrong_sizes: int
    """blocks whose size did not follow torch's rules; see Replay"""
    torch: TorchCounts | None
    """torch's own counts; None if the file has none"""
    total_bytes: int | None

    @property
    def agrees(self) -> bool | None:
        """Whether the peak is torch's own; None if torch's is not known."""
        return None if self.torch is None else self.torch.allocated_peak == self.peak_bytes


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """Rows by size, the largest first."""

    rows: tuple[MemoryRow, ...]
    devices: tuple[DeviceSummary, ...]
    by: By
    at: str
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)


def memory(
    trace: Trace,
    by: By = "line",
    at: At | int = "peak",
    own: tuple[str, ...] | None = None,
    limit: int | None = None,
) -> MemoryResult:
    """What was alive on each device at its peak, at the end, or at a time in ns after the first event.

    Raises UsageError, and NotEnoughDataError if the trace has no history of the allocator.
    """
    if by not in GROUPINGS:
        raise UsageError(f"by must be one of {', '.join(GROUPINGS)}, not {by!r}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    if isinstance(at, str) and at not in get_args(At):
        raise UsageError(f"at must be peak, end or a time, not {at!r}")
    rows, summaries = [], []
    devices = device_memories(trace, own)
    zero = first_ns(trace, devices)
    for each in devices:
        event = _event(each, at, zero)
        rows += _rows(each, event, by)
        summaries.append(_summary(each, event, zero))
    rows.sort(key=lambda row: (-row.bytes, row.pid, row.device, row.key))
    return MemoryResult(
        tuple(rows[:limit]),
        tuple(summaries),
        by,
        at if isinstance(at, str) else "time",
        len(rows),
    )


def first_ns(trace: Trace, devices: tuple[DeviceMemory, ...]) -> int:
    """The time zero of shown times: that of the other tables, without any that of the first event."""
    if len(trace.whole.operations) or len(trace.whole.calls):
        return trace.first_ns
    return min((int(each.history.time_ns[0]) for each in devices if len(each.history)), default=0)


def _event(each: DeviceMemory, at: At | int, zero: int) -> int:
    if at == "peak":
        return each.replayed.peak_event
    return len(each.history) - 1 if isinstance(at, str) else each.event_at(zero + at)


def _rows(each: DeviceMemory, event: int, by: By) -> list[MemoryRow]:
    made, alive = each.allocations, each.allocations.alive_at(event)
    groups: dict[tuple[str, str], dict[tuple[Place, int], list[int]]] = {}
    for row in alive.tolist():
        place, kind = each.place(row), int(each.kinds[row])
        key = (place.key, place.phase) if by == "line" else (KIND_NAMES[Kind(kind)], "")
        groups.setdefault(key, {}).setdefault((place, kind), []).append(row)
    total = each.replayed.allocated_at(event)
    return [_row(each, key, found, made.size, total, by) for key, found in groups.items()]


def _row(
    each: DeviceMemory,
    key: tuple[str, str],
    found: dict[tuple[Place, int], list[int]],
    size: np.ndarray,
    total: int,
    by: By,
) -> MemoryRow:
    parts = [
        Part(place, KIND_NAMES[Kind(kind)], int(size[rows].sum()), len(rows))
        for (place, kind), rows in found.items()
    ]
    parts.sort(key=lambda part: (-part.bytes, part.kind, part.place.key))
    rows = [row for group in found.values() for row in group]
    bytes_of: dict[str, int] = {}
    for part in parts:
        bytes_of[part.kind] = bytes_of.get(part.kind, 0) + part.bytes
    held = sum(part.bytes for part in parts)
    return MemoryRow(
        key=" ".join(filter(None, (*key, f"pid {each.pid}" if each.pid else "", f"GPU {each.device}"))),
        pid=each.pid,
        device=each.device,
        place=parts[0].place if by == "line" else None,
        kind=max(bytes_of, key=lambda kind: bytes_of[kind]),
        bytes=held,
        requested_bytes=int(each.allocations.requested[rows].sum()),
        blocks=len(rows),
        largest_bytes=int(size[rows].max()),
        share_frac=held / total if total else 0.0,
        parts=tuple(parts),
    )


def _summary(each: DeviceMemory, event: int, zero: int) -> DeviceSummary:
    replayed, history = each.replayed, each.history
    alive = each.allocations.alive_at(event)
    by_kind = np.zeros(len(Kind), dtype=np.int64)
    np.add.at(by_kind, each.kinds[alive], each.allocations.size[alive])
    held = sorted(((KIND_NAMES[kind], int(by_kind[kind])) for kind in Kind), key=lambda pair: -pair[1])
    counts = history.counts
    # Torch itself says whether an older peak was dropped, unless the program has reset it.
    is_cut = history.is_full
    return DeviceSummary(
        pid=each.pid,
        device=each.device,
        at_ns=each.time_of(event) - zero,
        allocated_bytes=replayed.allocated_at(event),
        reserved_bytes=replayed.reserved_at(event),
        peak_bytes=replayed.peak_bytes,
        peak_at_ns=each.time_of(replayed.peak_event) - zero,
        reserved_peak_bytes=replayed.reserved_peak_bytes,
        kinds=tuple((name, size) for name, size in held if size),
        cached=cached_at(replayed, event),
        cached_at_reserved_peak=reserved_peak(replayed),
        out_of_memory=tuple((oom, each.place_of_stack(oom.stack)) for oom in out_of_memory(replayed)),
        events=len(history),
        is_complete=not (replayed.begins_late or is_cut),
        is_cut=is_cut,
        wrong_sizes=replayed.wrong_sizes,
        torch=counts,
        total_bytes=history.total_bytes,
    )
