# SPDX-License-Identifier: Apache-2.0
"""torch's snapshot of its allocator as columns in JSON, small enough for the metadata of a recording.

It runs in the recorded program, so it uses the standard library alone.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Iterable
from typing import Any

from profiling_lab.recording import run_script

ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
           "segment_unmap", "snapshot", "oom")  # fmt: skip
MOST_FRAMES = 100
"""of a stack, the innermost ones"""


def packed(numbers: array[int]) -> str:
    """Numbers as text: little-endian, compressed."""
    return base64.b64encode(zlib.compress(numbers.tobytes(), 1)).decode()


class _Stacks:
    """Numbers for tracebacks. The frames of one snapshot are shared, so identities are cheap keys."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, str, int]] = []
        self.stacks: list[list[int]] = [[]]
        self._number_of_frame: dict[tuple[str, str, int], int] = {}
        self._frame_by_id: dict[int, int] = {}
        self._stack_by_ids: dict[tuple[int, ...], int] = {}
        self._number_of_stack: dict[tuple[int, ...], int] = {(): 0}

    def number(self, traceback: Any) -> int:
        if not traceback:
            return 0
        key = tuple(map(id, traceback))
        known = self._stack_by_ids.get(key)
        if known is None:
            frames = tuple(self._frames_of(traceback))[:MOST_FRAMES]
            known = self._number_of_stack.get(frames)
            if known is None:
                known = self._number_of_stack[frames] = len(self.stacks)
                self.stacks.append(list(frames))
            self._stack_by_ids[key] = known
        return known

    def _frames_of(self, traceback: Any) -> Iterable[int]:
        """From the innermost to the outermost of the program; the recorder's own frames are outside of it."""
        for frame in traceback:
            if frame["filename"] == run_script.__file__:
                return
            number = self._frame_by_id.get(id(frame))
            if number is None:
                key = (str(frame["filename"]), str(frame["name"]), int(frame["line"]))
                number = self._number_of_frame.setdefault(key, len(self.frames))
                if number == len(self.frames):
                    self.frames.append(key)
                self._frame_by_id[id(frame)] = number
            yield number


def snapshot_columns(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Everything of a snapshot that the analysis needs. Raises KeyError and the like for another layout."""
    stacks = _Stacks()
    segments: dict[int, list[Any]] = {}
    for segment in snapshot["segments"]:
        segments.setdefault(int(segment["device"]), []).append(segment)
    traces = snapshot["device_traces"]
    used = sorted({*segments, *(number for number, events in enumerate(traces) if events)})
    devices = [
        {
            "device": device,
            "events": _events(traces[device] if device < len(traces) else [], stacks),
            "segments": [
                [segment["address"], segment["total_size"], int(bool(segment.get("is_expandable")))]
                for segment in segments.get(device, [])
            ],
            "blocks": list(_blocks(segments.get(device, []))),
        }
        for device in used
    ]
    known = snapshot.get("allocator_settings") or {}
    settings = {name: known.get(name) for name in ("max_split_size", "roundup_power2_divisions")}
    return {"frames": stacks.frames, "stacks": stacks.stacks, "devices": devices, "settings": settings}


def _events(events: list[Any], stacks: _Stacks) -> dict[str, str]:
    action, stack = array("b"), array("i")
    address, size, time_us = array("q"), array("q"), array("q")
    number = {name: at for at, name in enumerate(ACTIONS)}
    for event in events:
        kind = number.get(event["action"])
        if kind is None:
            continue
        action.append(kind)
        address.append(event["device_free"] if event["action"] == "oom" else event["addr"])
        size.append(event["size"])
        time_us.append(event["time_us"])
        stack.append(stacks.number(event.get("frames")))
    return {
        "action": packed(action),
        "address": packed(address),
        "size": packed(size),
        "time_us": packed(time_us),
        "stack": packed(stack),
    }


def _blocks(segments: list[Any]) -> Iterable[list[int]]:
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                is_allocated = int(block["state"] == "active_allocated")
                yield [block["address"], block["size"], block["requested_size"], is_allocated]
