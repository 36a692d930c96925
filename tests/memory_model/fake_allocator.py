# SPDX-License-Identifier: Apache-2.0
"""A model of torch's caching allocator: free lists, splitting and merging, and snapshots in torch's layout.

It follows c10/cuda/CUDACachingAllocator.cpp independently of the replay in profiling_lab.analysis.memory:
it has blocks and free lists, where the replay has only addresses in use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SMALL, LARGE = 1 << 20, 10 << 20


class OutOfMemoryError(Exception):
    """What torch raises."""


@dataclass
class Block:
    address: int
    size: int
    segment: int
    requested: int = 0
    state: str = "inactive"
    frames: list[dict[str, Any]] = field(default_factory=list)


def frame(name: str, filename: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


class FakeAllocator:
    """One device. Times are in microseconds: each event takes one, unless there is a clock."""

    def __init__(self, capacity: int = 1 << 40, *, history: bool = True, max_split: int = 1 << 62,
                 expandable: bool = False, clock: Callable[[], int] | None = None) -> None:  # fmt: skip
        self.capacity, self.history, self.max_split, self.expandable = (
            capacity,
            history,
            max_split,
            expandable,
        )
        self.blocks: list[Block] = []  # by address, in every segment without gaps
        self.segments: dict[int, tuple[int, bool]] = {}
        self.events: list[dict[str, Any]] = []
        self.next_segment = 0x7F0000000000
        self.now, self.clock = 1_700_000_000_000_000, clock
        self.allocated = self.peak = self.reserved = self.reserved_peak = 0

    def note(self, action: str, address: int, size: int, frames: list[dict[str, Any]], **more: Any) -> None:
        self.now = self.clock() if self.clock else self.now + 1
        if self.history:
            where = more or {"addr": address}
            self.events.append({"action": action, **where, "size": size, "stream": 0, "time_us": self.now,
                                "frames": frames})  # fmt: skip

    def malloc(self, requested: int, frames: list[dict[str, Any]] | None = None) -> int:
        frames = frames or []
        size = max(-(-requested // 512) * 512, 512)
        block = self._best_fit(size) or self._new_segment(size, frames) or self._after_release(size, frames)
        if block is None:
            self.note("oom", 0, size, frames, device_free=self.capacity - self.reserved)
            raise OutOfMemoryError
        is_small = self.segments[block.segment][1]
        rest = block.size - size
        splits = rest >= 512 if is_small or self.expandable else rest > SMALL and size < self.max_split
        if splits:
            at = self.blocks.index(block)
            self.blocks.insert(at + 1, Block(block.address + size, rest, block.segment))
            block.size = size
        block.state, block.requested, block.frames = "active_allocated", requested, frames
        self.note("alloc", block.address, requested, frames)
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block.address

    def free(self, address: int, frames: list[dict[str, Any]] | None = None, *, later: bool = False) -> None:
        """later: another stream still uses the block; completed() ends that."""
        block = self._at(address)
        self.note("free_requested", address, block.requested, block.frames if frames is None else frames)
        block.state = "active_pending_free"
        self.allocated -= block.size
        if not later:
            self.completed(address)

    def completed(self, address: int) -> None:
        block = self._at(address)
        self.note("free_completed", address, block.requested, block.frames)
        block.state = "inactive"
        at = self.blocks.index(block)
        for other in (at + 1, at - 1):
            if 0 <= other < len(self.blocks):
                self._merge(self.blocks[min(at, other)], self.blocks[max(at, other)])

    def empty_cache(self) -> None:
        for address, (size, _) in list(self.segments.items()):
            block = self._at(address)
            if block.state == "inactive" and block.size == size:
                self.blocks.remove(block)
                del self.segments[address]
                self.reserved -= size
                self.note("segment_unmap" if self.expandable else "segment_free", address, size, [])

    def snapshot(self) -> dict[str, Any]:
        segments = []
        for address, (size, is_small) in self.segments.items():
            inside = [block for block in self.blocks if block.segment == address]
            segments.append({
                "device": 0, "address": address, "total_size": size, "stream": 0,
                "allocated_size": sum(b.size for b in inside if b.state == "active_allocated"),
                "active_size": sum(b.size for b in inside if b.state != "inactive"),
                "requested_size": sum(b.requested for b in inside if b.state != "inactive"),
                "segment_type": "small" if is_small else "large", "segment_pool_id": (0, 0),
                "is_expandable": self.expandable, "frames": [],
                "blocks": [{"address": b.address, "size": b.size, "requested_size": b.requested,
                            "state": b.state, "frames": b.frames} for b in inside],
            })  # fmt: skip
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1 if self.max_split == 1 << 62 else
                    self.max_split, "expandable_segments": self.expandable, "roundup_power2_divisions": {
                        str(1 << power): 0 for power in range(16)}}  # fmt: skip
        return {"segments": segments, "device_traces": [list(self.events)], "allocator_settings": settings,
                "external_annotations": []}  # fmt: skip

    def _at(self, address: int) -> Block:
        return next(block for block in self.blocks if block.address == address)

    def _best_fit(self, size: int) -> Block | None:
        is_small = size <= SMALL
        free = [b for b in self.blocks if b.state == "inactive" and b.size >= size
                and self.segments[b.segment][1] == is_small]  # fmt: skip
        return min(free, key=lambda block: (block.size, block.address), default=None)

    def _new_segment(self, size: int, frames: list[dict[str, Any]]) -> Block | None:
        large = 20 << 20 if size < LARGE else -(-size // (2 << 20)) * (2 << 20)
        total = 2 << 20 if size <= SMALL else large
        if self.reserved + total > self.capacity:
            return None
        address, self.next_segment = self.next_segment, self.next_segment + total + (2 << 20)
        self.segments[address] = (total, size <= SMALL)
        self.reserved += total
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        self.note("segment_map" if self.expandable else "segment_alloc", address, total, frames)
        block = Block(address, total, address)
        self.blocks.append(block)
        self.blocks.sort(key=lambda each: each.address)
        return block

    def _after_release(self, size: int, frames: list[dict[str, Any]]) -> Block | None:
        self.empty_cache()
        return self._new_segment(size, frames)

    def _merge(self, left: Block, right: Block) -> None:
        if left.state == right.state == "inactive" and left.segment == right.segment:
            left.size += right.size
            self.blocks.remove(right)
