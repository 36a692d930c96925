# SPDX-License-Identifier: Apache-2.0
"""Reserved against allocated: fragmentation, and what an allocation that failed would have needed."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.replay import BEFORE, SMALL_BYTES, Replay, rounded
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64
from profiling_lab.trace.memory_history import Action

SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
LARGE_FROM = 10 << 20


@dataclass(frozen=True, slots=True)
class Cached:
    """What the allocator holds without a tensor in it, at one moment."""

    allocated_bytes: int
    reserved_bytes: int
    in_used_segments_bytes: int
    """free parts of segments in which something is allocated: they cannot be given back to the driver"""
    largest_bytes: int
    """the largest free part; no request above this fits without new memory from the driver"""
    knows_segments: bool = True
    """False: only the sums are known, the two numbers above are 0"""

    @property
    def free_bytes(self) -> int:
        return self.reserved_bytes - self.allocated_bytes

    @property
    def free_frac(self) -> float:
        return self.free_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One request that failed."""

    event: int
    time_ns: int
    requested_bytes: int
    needed_bytes: int
    """of the driver: the segment that the allocator asked for"""
    device_free_bytes: int
    """what the driver still had"""
    cached: Cached
    stack: int

    @property
    def short_bytes(self) -> int:
        """What the driver had too little."""
        return max(self.needed_bytes - self.device_free_bytes, 0)

    @property
    def fits_in_free_parts(self) -> bool:
        """Whether the free parts together would have held it: only fragmentation stood in the way."""
        return self.cached.free_bytes >= self.requested_bytes


def cached_at(replayed: Replay, event: int) -> Cached:
    """What is free inside of the reserved memory after an event."""
    if replayed.history.totals is not None:
        return Cached(replayed.allocated_at(event), replayed.reserved_at(event), 0, 0, knows_segments=False)
    starts, ends = _segments_at(replayed, event)
    made = replayed.allocations
    alive = made.alive_at(event)
    alive = alive[np.argsort(made.address[alive], kind="stable")]
    address, size = made.address[alive], made.size[alive]
    in_used = largest = 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first, last = np.searchsorted(address, (start, end))
        edges = np.concatenate([[start], address[first:last] + size[first:last]])
        gaps = np.append(address[first:last], end) - edges
        largest = max(largest, int(gaps.max()))
        if last > first:
            in_used += int(gaps.sum())
    return Cached(replayed.allocated_at(event), replayed.reserved_at(event), in_used, largest)


def _segments_at(replayed: Replay, event: int) -> tuple[I64, I64]:
    """Starts and ends of the reserved memory after an event; neighbours in an expandable segment are one."""
    history = replayed.history
    spans = {
        int(start): int(start + size)
        for start, size in zip(history.segments.address, history.segments.size, strict=True)
    }
    kinds = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
    rows = np.flatnonzero(np.isin(history.action, kinds))
    for row in rows[rows > event][::-1].tolist():  # back from the end
        start, size = int(history.address[row]), int(history.size[row])
        if history.action[row] in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            spans[start] = start + size
        else:
            _cut(spans, start, start + size)
    starts = np.array(sorted(spans), dtype=np.int64)
    ends = np.array([spans[start] for start in starts.tolist()], dtype=np.int64)
    if history.segments.is_expandable.any() or np.isin(history.action, kinds[2:]).any():
        new = np.append(True, starts[1:] != ends[:-1]) if len(starts) else np.empty(0, dtype=bool)
        last = np.append(new[1:], True) if len(starts) else new
        return starts[new], ends[last]
    return starts, ends


def _cut(spans: dict[int, int], start: int, end: int) -> None:
    """Take a part out of the spans."""
    for first in [first for first, last in spans.items() if first < end and start < last]:
        last = spans.pop(first)
        if first < start:
            spans[first] = start
        if end < last:
            spans[end] = last


def out_of_memory(replayed: Replay) -> tuple[OutOfMemory, ...]:
    """The requests that failed, in order."""
    history = replayed.history
    found = []
    for row in np.flatnonzero(history.action == Action.OOM).tolist():
        requested = int(history.size[row])
        found.append(
            OutOfMemory(
                event=row,
                time_ns=int(history.time_ns[row]),
                requested_bytes=requested,
                needed_bytes=_segment_bytes(rounded(requested, history.settings)),
                device_free_bytes=int(history.address[row]),
                cached=cached_at(replayed, row),
                stack=int(history.stack[row]),
            )
        )
    return tuple(found)


def _segment_bytes(size: int) -> int:
    """The segment that the allocator asks the driver for, where it makes no expandable ones."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT
    if size < LARGE_FROM:
        return LARGE_SEGMENT
    return -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


def reserved_peak(replayed: Replay) -> Cached:
    """At the first moment with most reserved memory."""
    reserved = replayed.reserved
    above = len(reserved) and int(reserved.max()) > replayed.reserved_before
    return cached_at(replayed, int(reserved.argmax()) if above else BEFORE)
