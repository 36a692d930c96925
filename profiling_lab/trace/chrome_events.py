# SPDX-License-Identifier: Apache-2.0
"""The events of a torch.profiler file (Chrome trace JSON), sorted into their kinds."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from profiling_lab.errors import UnreadableInputError
from profiling_lab.trace.columns import I64

# Categories by what they are here. torch before 1.12 wrote them in title case and with other names.
KINDS = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "set",
    "memset": "set",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "runtime": "call",
    "cpu_op": "operator",
    "operator": "operator",
    "user_annotation": "operator",
    "python_function": "python",
    "overhead": "overhead",
}
_LONGEST_US = 7 * 24 * 3600 * 1_000_000  # CUPTI's counters overflow; a longer event is none
_BARE_NAN = re.compile(rb"(?<=[:\[,])\s*-?(?:N/A|NaN|nan|Infinity|inf)\s*(?=[,\]}])")
_CONTROL = re.compile(rb"[\x00-\x1f]")


class Args(msgspec.Struct, gc=False):
    """What is used of an event's arguments. A wrong type in a field that nobody asks for must not matter."""

    correlation: Any = None
    device: Any = None
    stream: Any = None
    bytes: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    forward_thread: Any = msgspec.field(default=None, name="Fwd thread id")
    call_stack: Any = msgspec.field(default=None, name="Call stack")


class Event(msgspec.Struct, gc=False):
    """One event."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = None


class File(msgspec.Struct, gc=False):
    """The root object."""

    traceEvents: list[Event] = msgspec.field(default_factory=list)
    baseTimeNanoseconds: int = 0
    deviceProperties: list[dict[str, Any]] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChromeEvents:
    """Complete events (`ph` X) by kind, in the order of the file."""

    kinds: dict[str, list[Event]]
    base_ns: int
    devices: tuple[dict[str, Any], ...]
    repairs: dict[str, int] = field(default_factory=dict)

    def of(self, *kinds: str) -> list[Event]:
        return [event for kind in kinds for event in self.kinds.get(kind, ())]


def read_events(path: Path) -> ChromeEvents:
    """Read the file. Raises UnreadableInputError if it is no trace of torch.profiler."""
    content = _content(path)
    repairs: dict[str, int] = {}
    try:
        parsed = _decode(content)
    except msgspec.MsgspecError:
        content, repaired = _BARE_NAN.subn(b"null", content)
        content, controls = _CONTROL.subn(b" ", content)
        repairs["values and characters that are not JSON (read as null and as blanks)"] = repaired + controls
        try:
            parsed = _decode(content)
        except msgspec.MsgspecError as error:
            raise UnreadableInputError(f"{path} is no trace of torch.profiler: {error}") from None
    kinds: dict[str, list[Event]] = {}
    wild = 0
    for event in parsed.traceEvents:
        if event.ph != "X":
            continue
        kind = KINDS.get(event.cat.lower()) if isinstance(event.cat, str) else None
        if kind is None:
            continue
        if not _is_number(event.ts) or not _is_number(event.dur) or not 0 <= event.dur < _LONGEST_US:
            wild += 1
            continue
        kinds.setdefault(kind, []).append(event)
    if not kinds:
        raise UnreadableInputError(
            f"{path} is JSON but no trace of torch.profiler: it has none of its events"
        )
    if wild:
        repairs["events without a sensible time (left out)"] = wild
    return ChromeEvents(kinds, parsed.baseTimeNanoseconds, tuple(parsed.deviceProperties), repairs)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        raise UnreadableInputError(f"{path} breaks off: its gzip data is not complete") from None


def _decode(content: bytes) -> File:
    if content.lstrip()[:1] == b"[":  # the bare list of events, as some tools leave it
        return File(traceEvents=msgspec.json.decode(content, type=list[Event]))
    return msgspec.json.decode(content, type=File)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def whole(value: Any, missing: int = -1) -> int:
    """An argument as an integer: some versions write numbers as text."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return missing
    return number if -(2**63) <= number < 2**63 else missing


def nanoseconds(events: Sequence[Event], base_ns: int) -> tuple[I64, I64]:
    """Starts and ends. Times are microseconds, integers in old files and with a fraction in new ones."""
    start = _to_ns([event.ts for event in events]) + np.int64(base_ns)
    return start, start + _to_ns([event.dur for event in events])


def _to_ns(microseconds: list[Any]) -> I64:
    if all(isinstance(value, int) for value in microseconds):
        return np.array(microseconds, dtype=np.int64) * 1000
    return np.round(np.array(microseconds, dtype=np.float64) * 1000).astype(np.int64)
