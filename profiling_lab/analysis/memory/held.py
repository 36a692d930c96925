# SPDX-License-Identifier: Apache-2.0
"""What a recording held in GPU memory at its peak, in the few facts that a comparison needs."""

from __future__ import annotations

from profiling_lab.analysis.memory.devices import Place
from profiling_lab.analysis.memory.memory import memory
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class PeakPart:
    """What was alive at the peak from one line, in one phase, of one kind; summed over the GPUs."""

    place: Place
    kind: str
    bytes: int
    source: str
    """the text of the line, '' if it is unknown"""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The peak of every GPU of every process, each at its own moment. The parts sum to the peaks."""

    path: str
    peaks: tuple[int, ...]
    is_exact: bool
    """False: a history is not complete, and torch's own count does not confirm its peak"""
    parts: tuple[PeakPart, ...]

    @property
    def peak_bytes(self) -> int:
        return sum(self.peaks)


def held(trace: Trace, own: tuple[str, ...] = ()) -> PeakMemory:
    """Of the whole recording, also of a part of it: what is alive in a step was often made before it.

    Raises NotEnoughDataError if the trace has no history of the allocator.
    """
    found = memory(trace, "line", "peak", own)
    sums: dict[tuple[Place, str], int] = {}
    for row in found.rows:
        for part in row.parts:
            key = (part.place, part.kind)
            sums[key] = sums.get(key, 0) + part.bytes
    texts = trace.source_texts
    return PeakMemory(
        path=str(trace.path),
        peaks=tuple(device.peak_bytes for device in found.devices),
        is_exact=all(device.is_complete or device.agrees is True for device in found.devices),
        parts=tuple(PeakPart(place, kind, size, _text(texts, place)) for (place, kind), size in sums.items()),
    )


def held_if_recorded(trace: Trace, own: tuple[str, ...] = ()) -> PeakMemory | None:
    try:
        return held(trace, own)
    except NotEnoughDataError:
        return None


def _text(texts: dict[tuple[str, int], str], place: Place) -> str:
    return texts.get((place.frame.file, place.frame.line), "") if place.frame else ""
