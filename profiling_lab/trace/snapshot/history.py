# SPDX-License-Identifier: Apache-2.0
"""A snapshot of torch.cuda.memory._snapshot() as columns. The layout is that of torch 2.0 and later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.memory_history import (
    ACTIONS,
    Action,
    AllocatorSettings,
    MemoryHistory,
    Segments,
    UsedBlocks,
    sane_sizes,
)
from profiling_lab.trace.stacks import Frame, StackBuilder

ALLOCATED = "active_allocated"
# torch's documentation and its code spell the third state differently.
IN_USE = (ALLOCATED, "active_pending_free", "active_awaiting_free")


class SnapshotStacks:
    """Rows of a stack tree for the frames of a snapshot; every traceback is converted once."""

    def __init__(self) -> None:
        self.builder = StackBuilder()
        self._frames: dict[int, tuple[Any, Frame]] = {}
        self._rows: dict[tuple[int, ...], int] = {}

    def row(self, frames: Any) -> int:
        """Of a list of frames, the innermost first; 0 for none."""
        if not frames:
            return 0
        # The frames of one snapshot are shared; their identity is a cheap key.
        key = tuple(map(id, frames))
        if (row := self._rows.get(key)) is None:
            row = self._rows[key] = self.builder.add(self._frame(frame) for frame in frames)
        return row

    def _frame(self, frame: Any) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            made = Frame(str(frame["name"]), str(frame["filename"]), int(frame["line"]))
            known = self._frames[id(frame)] = (frame, made)  # kept, so that no other has this identity
        return known[1]


def histories(snapshot: Any, stacks: SnapshotStacks) -> tuple[MemoryHistory, ...]:
    """One history per device of which the snapshot has events or segments.

    Raises UnreadableInputError if it is not a snapshot.
    """
    if isinstance(snapshot, list):  # before torch 2.0: segments alone
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, Mapping) or not ("segments" in snapshot or "device_traces" in snapshot):
        raise UnreadableInputError(
            "it is a pickle, but not a memory snapshot: expected a dict with segments and device_traces, as "
            "torch.cuda.memory._dump_snapshot writes it"
        )
    try:
        settings = AllocatorSettings.of(snapshot.get("allocator_settings") or {})
        traces = list(snapshot.get("device_traces") or ())
        segments: dict[int, list[Any]] = {}
        for segment in snapshot.get("segments") or ():
            segments.setdefault(int(segment.get("device", 0)), []).append(segment)
        used = [number for number, events in enumerate(traces) if events]
        return tuple(
            _history(device, traces[device] if device < len(traces) else [], segments.get(device, []), stacks,
                     settings)
            for device in sorted({*used, *segments})
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableInputError(
            f"its layout is not that of torch's memory snapshots: {type(error).__name__}: {error}"
        ) from None


def _history(
    device: int,
    events: list[Any],
    segments: list[Any],
    stacks: SnapshotStacks,
    settings: AllocatorSettings,
) -> MemoryHistory:
    events = [event for event in events if event["action"] in ACTIONS]
    action = np.array([ACTIONS[event["action"]] for event in events], dtype=np.uint8)
    is_oom = action == Action.OOM
    address = [event["device_free" if oom else "addr"] for event, oom in zip(events, is_oom, strict=True)]
    return MemoryHistory(
        process=0,
        device=device,
        action=action,
        address=_numbers(address),
        size=sane_sizes(_numbers([event["size"] for event in events])),
        time_ns=_numbers([event.get("time_us", 0) for event in events]) * 1000,
        stack=_stacks(events, stacks),
        segments=Segments(
            _numbers([segment["address"] for segment in segments]),
            sane_sizes(_numbers([segment["total_size"] for segment in segments])),
            np.array([bool(segment.get("is_expandable", False)) for segment in segments], dtype=bool),
        ),
        blocks=_used(segments),
        settings=settings,
    )


def _stacks(events: list[Any], stacks: SnapshotStacks) -> I32:
    return np.array([stacks.row(event.get("frames")) for event in events], dtype=np.int32)


def _used(segments: list[Any]) -> UsedBlocks:
    rows = []
    for segment in segments:
        at = int(segment["address"])
        for block in segment.get("blocks") or ():
            at = int(block.get("address", at))
            if block["state"] in IN_USE:
                size = int(block["size"])
                rows.append((at, size, int(block.get("requested_size", size)), block["state"] == ALLOCATED))
            at += int(block["size"])
    columns = _numbers([row[:3] for row in rows]).reshape(-1, 3)
    allocated = np.array([row[3] for row in rows], dtype=bool)
    return UsedBlocks(columns[:, 0].copy(), sane_sizes(columns[:, 1]), sane_sizes(columns[:, 2]), allocated)


def _numbers(values: list[Any]) -> I64:
    """Addresses may use the highest bit; they keep their bits."""
    return np.array([_signed(value) for value in values] if values else [], dtype=np.int64)


def _signed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_signed, value))
    number = int(value)
    return number - (1 << 64) if 1 << 63 <= number < 1 << 64 else number
