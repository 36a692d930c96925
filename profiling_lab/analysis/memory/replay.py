# SPDX-License-Identifier: Apache-2.0
"""Replay the events of torch's caching allocator: which blocks were alive when, and how large they were.

An event has the bytes that were requested. torch counts the block, which is larger: sizes are rounded up, and
a rest that is too small to be a block of its own stays with the block. Both follow from the rules of the
allocator (c10/cuda/CUDACachingAllocator.cpp: round_size, should_split) and from what was in use around it.
The snapshot at the end has the true sizes of the blocks alive then, against which the replay is checked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.memory_history import Action, AllocatorSettings, MemoryHistory

SMALLEST_BYTES = 512
SMALL_BYTES = 1 << 20
"""the small pool has blocks up to this size; in the large pool a rest up to this size is not split off"""
MIB = 1 << 20
LARGEST_INTERVAL = 1 << 15
"""MiB; larger requests are rounded like these, if the settings divide powers of two"""
BEFORE = -1


@dataclass(frozen=True, slots=True)
class Allocations:
    """One row per allocation, in the order of `begin`. Those from before the history come first."""

    address: I64
    size: I64
    """of the block: what torch counts"""
    requested: I64
    begin: I64
    """row of the event that made it; BEFORE if that is older than the history"""
    end: I64
    """row of the event that requested its free; the number of events if it is alive at the end"""
    stack: I32

    def __len__(self) -> int:
        return len(self.address)

    def alive_at(self, event: int) -> npt.NDArray[np.intp]:
        """The rows that are alive after this event; BEFORE is the time before the first."""
        return np.flatnonzero((self.begin <= event) & (self.end > event))


@dataclass(frozen=True, slots=True)
class Replay:
    """What the history of one device says when it is replayed."""

    history: MemoryHistory
    allocations: Allocations
    allocated: I64
    """bytes in blocks after each event, what torch.cuda.memory_allocated() says"""
    reserved: I64
    """bytes in segments after each event, what torch.cuda.memory_reserved() says"""
    allocated_before: int
    """the same before the first event"""
    reserved_before: int
    begins_late: bool
    """there were blocks or segments before the first event"""
    wrong_sizes: int
    """blocks alive at the end whose replayed size was not that of the snapshot; corrected"""

    @property
    def peak_event(self) -> int:
        """The first event after which most was allocated; BEFORE if it never was more than at the start."""
        if not len(self.allocated) or int(self.allocated.max()) <= self.allocated_before:
            return BEFORE
        return int(self.allocated.argmax())

    def allocated_at(self, event: int) -> int:
        return self.allocated_before if event == BEFORE else int(self.allocated[event])

    def reserved_at(self, event: int) -> int:
        return self.reserved_before if event == BEFORE else int(self.reserved[event])

    @property
    def peak_bytes(self) -> int:
        return self.allocated_at(self.peak_event)

    @property
    def reserved_peak_bytes(self) -> int:
        return max(self.reserved_before, int(self.reserved.max(initial=0)))


def rounded(requested: int, settings: AllocatorSettings) -> int:
    """The bytes that the allocator looks for, for a request of this size."""
    if requested <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    parts = _divisions(requested, settings)
    if parts > 1 and requested > SMALLEST_BYTES * parts:
        power = 1 << (requested.bit_length() - 1)
        if power == requested:
            return requested
        step = power // parts
        return power + -(-(requested - power) // step) * step if step else 2 * power
    return -(-requested // SMALLEST_BYTES) * SMALLEST_BYTES


def _divisions(requested: int, settings: AllocatorSettings) -> int:
    if not settings.roundup_divisions:
        return 0
    power = 1 << max(requested // MIB, 1).bit_length() - 1
    return settings.roundup_divisions.get(min(power, LARGEST_INTERVAL), 0)


class _Segments:
    """The segments that are not expandable, by address."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: dict[int, int] = {}

    def add(self, address: int, size: int) -> None:
        if address not in self.ends:
            insort(self.starts, address)
        self.ends[address] = address + size

    def remove(self, address: int) -> None:
        if self.ends.pop(address, None) is not None:
            self.starts.remove(address)

    def end_around(self, address: int) -> int | None:
        """The end of the segment around an address; None if it is in none."""
        at = bisect_right(self.starts, address) - 1
        if at < 0:
            return None
        end = self.ends[self.starts[at]]
        return end if address < end else None


class _Replayer:
    """The state of the allocator while the events are replayed."""

    def __init__(self, history: MemoryHistory) -> None:
        self.history = history
        self.segments = _Segments()
        self.in_use: list[int] = []  # addresses, sorted, of what is allocated or not yet reusable
        self.rows: list[list[int]] = []  # address, size, requested, begin, end, stack
        self.live: dict[int, int] = {}
        self.actions: list[int] = history.action.tolist()
        self.addresses: list[int] = history.address.tolist()
        self.sizes: list[int] = history.size.tolist()

    def run(self) -> bool:
        """Replay all events. Returns whether something was there before the first."""
        late = self._what_was_there()
        stacks = self.history.stack.tolist()
        for row, (action, address, size) in enumerate(
            zip(self.actions, self.addresses, self.sizes, strict=True)
        ):
            if action == Action.ALLOC:
                self._release(address)
                if (number := self.live.pop(address, None)) is not None:  # its free is not in the history
                    self.rows[number][4] = row
                self._allocate(address, size, row, stacks[row])
            elif action == Action.FREE_REQUESTED:
                if (number := self.live.pop(address, None)) is not None:
                    self.rows[number][4] = row
            elif action == Action.FREE_COMPLETED:
                self._release(address)
            elif action == Action.SEGMENT_ALLOC:
                self.segments.add(address, size)
            elif action == Action.SEGMENT_FREE:
                self.segments.remove(address)
        return late

    def _allocate(self, address: int, requested: int, begin: int, stack: int) -> None:
        self.live[address] = len(self.rows)
        self.rows.append(
            [address, self._block(address, requested), requested, begin, len(self.actions), stack]
        )
        insort(self.in_use, address)

    def _release(self, address: int) -> None:
        at = bisect_left(self.in_use, address)
        if at < len(self.in_use) and self.in_use[at] == address:
            del self.in_use[at]

    def _block(self, address: int, requested: int) -> int:
        """The size of a block that is allocated now."""
        if self.history.totals is not None:
            return requested
        size = rounded(requested, self.history.settings)
        end = self.segments.end_around(address)
        if size <= SMALL_BYTES or end is None:  # the small pool and expandable segments split off every rest
            return size
        following = bisect_right(self.in_use, address)
        if following < len(self.in_use):
            end = min(end, self.in_use[following])
        rest = end - address - size
        if rest < 0 or (rest > SMALL_BYTES and size < self.history.settings.max_split_bytes):
            return size
        return end - address

    def _what_was_there(self) -> bool:
        """Put the segments and blocks in place that are older than the history."""
        history = self.history
        made: set[int] = set()
        segments: dict[int, int] = {}
        made_segments: set[int] = set()
        blocks: dict[int, int] = {}
        pending: set[int] = set()
        for action, address, size in zip(self.actions, self.addresses, self.sizes, strict=True):
            if action == Action.ALLOC:
                made.add(address)
            elif action == Action.FREE_REQUESTED:
                if address in made:
                    made.discard(address)
                else:
                    blocks.setdefault(address, size)
                pending.add(address)
            elif action == Action.SEGMENT_ALLOC:
                made_segments.add(address)
            elif action == Action.SEGMENT_FREE:
                if address in made_segments:
                    made_segments.discard(address)
                else:
                    segments.setdefault(address, size)
        last = history.segments
        for address, size, expandable in zip(
            last.address.tolist(), last.size.tolist(), last.is_expandable.tolist(), strict=True
        ):
            if not expandable and address not in made_segments:
                segments.setdefault(address, size)
        for address, size in segments.items():
            self.segments.add(address, size)
        used = history.blocks
        for address, requested, allocated in zip(
            used.address.tolist(), used.requested.tolist(), used.is_allocated.tolist(), strict=True
        ):
            if address not in made and (allocated or address not in pending):
                blocks.setdefault(address, requested)
        for address in sorted(blocks, reverse=True):  # each block ends at the latest where the next begins
            self._allocate(address, blocks[address], BEFORE, 0)
        self.rows.reverse()
        self.live = {row[0]: number for number, row in enumerate(self.rows)}
        return bool(blocks or segments)


def replay(history: MemoryHistory) -> Replay:
    """What was alive when, to the byte where the history is complete."""
    replayer = _Replayer(history)
    late = replayer.run()
    columns = np.array(replayer.rows, dtype=np.int64).reshape(-1, 6)
    columns, older = _with_what_is_only_a_sum(columns, history)
    late |= older
    wrong = _correct(columns, history)
    allocations = Allocations(
        address=columns[:, 0].copy(),
        size=columns[:, 1].copy(),
        requested=columns[:, 2].copy(),
        begin=columns[:, 3].copy(),
        end=columns[:, 4].copy(),
        stack=columns[:, 5].astype(np.int32),
    )
    events = len(history)
    change = np.zeros(events + 1, dtype=np.int64)
    begun = allocations.begin >= 0
    np.add.at(change, allocations.begin[begun], allocations.size[begun])
    np.subtract.at(change, allocations.end, allocations.size)
    before = int(allocations.size[~begun].sum())
    reserved, reserved_before = _reserved(history)
    return Replay(
        history=history,
        allocations=allocations,
        allocated=before + np.cumsum(change[:events]),
        reserved=reserved,
        allocated_before=before,
        reserved_before=reserved_before,
        begins_late=late or (reserved_before > 0 and history.totals is None),
        wrong_sizes=wrong,
    )


def _with_what_is_only_a_sum(rows: I64, history: MemoryHistory) -> tuple[I64, bool]:
    """Add a block for what was allocated before, as far as only the totals tell of it."""
    if history.totals is None or not len(history):
        return rows, False
    sign = -1 if history.action[0] == Action.FREE_REQUESTED else 1
    before = int(history.totals.allocated[0]) - sign * int(history.size[0])
    unknown = before - int(rows[rows[:, 3] == BEFORE, 2].sum())
    if unknown <= 0:
        return rows, False
    block = np.array([[-1, unknown, unknown, BEFORE, len(history), 0]], dtype=np.int64)
    return np.concatenate([block, rows]), True


def _reserved(history: MemoryHistory) -> tuple[I64, int]:
    """Reserved bytes after each event, and before the first."""
    if history.totals is not None:
        return history.totals.reserved, int(history.totals.reserved[0]) if len(history) else 0
    grown = np.cumsum(_segment_change(history))
    end = int(history.segments.size.sum())
    before = end - int(grown[-1]) if len(history) else end
    return before + grown, before


def _segment_change(history: MemoryHistory) -> I64:
    grows = np.isin(history.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    shrinks = np.isin(history.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    return history.size * (grows.astype(np.int64) - shrinks.astype(np.int64))


def _correct(rows: I64, history: MemoryHistory) -> int:
    """Give the rows alive at the end the sizes of the snapshot. Returns how many were wrong."""
    alive = np.flatnonzero(rows[:, 4] == len(history))
    used = history.blocks
    kept = np.flatnonzero(used.is_allocated)
    if not len(kept):
        return 0
    order = kept[np.argsort(used.address[kept], kind="stable")]
    at = np.minimum(np.searchsorted(used.address[order], rows[alive, 0]), len(order) - 1)
    found = used.address[order][at] == rows[alive, 0]
    true = used.size[order][at]
    wrong = alive[found & (true != rows[alive, 1])]
    rows[alive[found], 1] = true[found]
    return len(wrong)
