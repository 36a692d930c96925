# SPDX-License-Identifier: Apache-2.0
"""Compare the peaks of two recordings, by function. Lines move between two versions of a program."""

from __future__ import annotations

from dataclasses import dataclass

from profiling_lab.analysis.memory.devices import Place
from profiling_lab.analysis.memory.memory import MemoryResult, Part, memory
from profiling_lab.errors import UsageError
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """What one function held at both peaks, of one phase and kind."""

    key: str
    place: Place
    """of the newer recording where it has one"""
    kind: str
    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class ComparedResult:
    """Rows by change, the largest first. The peaks of several devices are summed."""

    rows: tuple[ComparedRow, ...]
    before_bytes: int
    after_bytes: int
    are_complete: bool
    """both histories are complete; else a peak may be lower than it was"""
    total_matched: int


def compare(
    before: Trace, after: Trace, own: tuple[str, ...] | None = None, limit: int | None = None
) -> ComparedResult:
    """The peak of `after` against that of `before`.

    Raises UsageError, and NotEnoughDataError if one of them has no history of the allocator.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    sides = [memory(trace, "line", "peak", own) for trace in (before, after)]
    held: dict[tuple[str, str], list[int]] = {}
    places: dict[tuple[str, str], Place] = {}
    for number, side in enumerate(sides):
        for part in _parts(side):
            key = (_key(part.place), part.kind)
            held.setdefault(key, [0, 0])[number] += part.bytes
            places[key] = part.place
    rows = [
        ComparedRow(f"{key} {kind}", places[key, kind], kind, *sizes) for (key, kind), sizes in held.items()
    ]
    rows.sort(key=lambda row: (-abs(row.change_bytes), -row.after_bytes, row.key))
    peaks = [sum(device.peak_bytes for device in side.devices) for side in sides]
    return ComparedResult(
        tuple(rows[:limit]),
        peaks[0],
        peaks[1],
        all(device.is_complete for side in sides for device in side.devices),
        len(rows),
    )


def _parts(side: MemoryResult) -> list[Part]:
    return [part for row in side.rows for part in row.parts]


def _key(place: Place) -> str:
    """File and function, not the line: other lines of a function move it."""
    if place.frame is None:
        return f"{place.phase} {place.reason}"
    return f"{place.phase} {place.frame.file.rsplit('/', 1)[-1]} {place.frame.function}"
