# SPDX-License-Identifier: Apache-2.0
"""The planes of an XPlane file, with names in place of ids."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from profiling_lab.errors import UnreadableInputError
from profiling_lab.records import dataclass
from profiling_lab.trace.xplane.messages import message_class

Value: TypeAlias = int | str | bytes
Stats: TypeAlias = dict[str, Value]

GPU, TPU, HOST = "/device:GPU:", "/device:TPU:", "/host:"
_GZIP = b"\x1f\x8b"
_PROGRAM = re.compile(r"\((\d+)\)$")
_METADATA, _TASK = "/host:metadata", "Task Environment"
# What is read of events; other stats are skipped, because files have millions of events.
_OF_EVENTS = {
    "correlation_id", "hlo_op", "hlo_module", "program_id", "step_num",
    "kernel_details", "memcpy_details", "memset_details",
    "allocator_name", "bytes_allocated", "allocation_bytes",
}  # fmt: skip


def text_of(stats: Stats, name: str) -> str:
    """A text, or a number as text; '' if it is missing."""
    value = stats.get(name, "")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Event(NamedTuple):
    """Times are on the clock of the file."""

    name: str
    start_ns: int
    end_ns: int
    stats: Stats


@dataclass(frozen=True, slots=True)
class Line:
    """A thread of the host, or a stream of a device."""

    id: int
    name: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Plane:
    """A device, or the host."""

    name: str
    stats: Stats
    lines: tuple[Line, ...]

    @property
    def ordinal(self) -> int:
        """The number of a device, -1 if it has none."""
        last = self.name.rpartition(":")[2].split(" ")[0]
        return int(last) if last.isdecimal() else -1


@dataclass(frozen=True, slots=True)
class Space:
    """A file."""

    file_bytes: int
    planes: tuple[Plane, ...]
    modules: dict[int, bytes]
    """by program id the message HloProto of each compiled program"""
    facts: Stats
    """versions, process id, and times of the profile in nanoseconds since 1970"""

    def named(self, beginning: str) -> tuple[Plane, ...]:
        return tuple(plane for plane in self.planes if plane.name.startswith(beginning))


def read_space(path: Path) -> Space:
    """Raises UnreadableInputError if the file is cut off or no XPlane file, or protobuf is missing."""
    try:
        message = message_class("XSpace")()
    except ImportError:
        raise UnreadableInputError(
            f"{path} is an XPlane file, which is read with protobuf; that is not installed: "
            "pip install 'profiling-lab[xplane]'"
        ) from None
    from google.protobuf.message import DecodeError

    data = path.read_bytes()
    file_bytes = len(data)
    try:
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
        message.ParseFromString(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableInputError(
            f"{path} is truncated or damaged, it cannot be decompressed: {error}"
        ) from None
    except DecodeError:
        raise UnreadableInputError(
            f"{path} is a truncated or damaged XPlane file: expected whole protobuf messages"
        ) from None
    facts: Stats = {}
    modules: dict[int, bytes] = {}
    planes = []
    for raw in message.planes:
        names = {entry.key: entry.value.name for entry in raw.stat_metadata}
        stats = _stats(raw.stats, names)
        if raw.name == _METADATA:
            modules = dict(_modules(raw, names))
        if not raw.name.startswith("/device:"):
            facts |= stats
        if raw.name not in (_METADATA, _TASK):
            planes.append(Plane(raw.name, stats, tuple(_lines(raw, names))))
    return Space(file_bytes, tuple(planes), modules, facts)


def _lines(raw: Any, names: dict[int, str]) -> Iterator[Line]:
    known = {entry.key: entry.value for entry in raw.event_metadata}
    titles = {key: value.name for key, value in known.items()}
    wanted = {key: name for key, name in names.items() if name in _OF_EVENTS}
    shared = {key: found for key, value in known.items() if (found := _stats(value.stats, names, wanted))}
    for line in raw.lines:
        zero = line.timestamp_ns
        events = []
        for event in line.events:
            begin, key = event.offset_ps, event.metadata_id
            stats = _stats(event.stats, names, wanted)
            if key in shared:
                stats = shared[key] | stats
            end = zero + (begin + event.duration_ps) // 1000
            events.append(Event(titles.get(key, ""), zero + begin // 1000, end, stats))
        yield Line(line.id, line.name, tuple(events))


def _stats(stats: Any, names: dict[int, str], wanted: dict[int, str] | None = None) -> Stats:
    """Values by name. `names`: also of texts that are stored once."""
    wanted = names if wanted is None else wanted
    return {wanted[stat.metadata_id]: _value(stat, names) for stat in stats if stat.metadata_id in wanted}


def _value(stat: Any, names: dict[int, str]) -> Value:
    if stat.ref_value:
        return names.get(stat.ref_value, "")
    value: Value = stat.str_value or stat.int64_value or stat.uint64_value or stat.bytes_value or 0
    return value


def _modules(raw: Any, names: dict[int, str]) -> Iterator[tuple[int, bytes]]:
    """The compiled programs. Each is an event of the plane, named `jit_step(6)` by its name and its id."""
    for entry in raw.event_metadata:
        match = _PROGRAM.search(entry.value.name)
        for value in _stats(entry.value.stats, names).values():
            if isinstance(value, bytes):
                yield int(match[1]) if match else entry.key, value
