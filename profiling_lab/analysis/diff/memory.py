# SPDX-License-Identifier: Apache-2.0
"""Peaks of GPU memory compared: what was alive at them, by line and kind, and a limit for their growth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias, get_args

from profiling_lab.analysis.diff.align import Line, Signature, same_files, same_lines
from profiling_lab.analysis.diff.guard import CHECKS
from profiling_lab.analysis.diff.measure import Capture
from profiling_lab.analysis.diff.verdict import Limit, Outcome, parse_memory_limit
from profiling_lab.analysis.memory.devices import HOW, Place
from profiling_lab.analysis.memory.held import PeakMemory, PeakPart, held
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace

By: TypeAlias = Literal["line", "function"]
_RUNS_DIFFER = "the limit lies between the recordings of a side"


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """What one line or function held at both peaks, in one phase and of one kind."""

    key: str
    place: Place
    """of the side after where it has one"""
    line_before: int
    """its number before the change, where the line moved; else 0"""
    kind: str
    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """How much the peak may grow, and the outcome."""

    text: str
    limit_bytes: int
    change_bytes: int
    outcome: Outcome
    why: str = ""
    """why it is undecided, '' if it is not"""

    @property
    def is_noise(self) -> bool:
        """Where it is undecided: because runs differ, not because a peak is not known."""
        return self.why == _RUNS_DIFFER


@dataclass(frozen=True, slots=True)
class MemoryDiff:
    """Rows by the size of their change, the largest first; they sum to the peaks of both sides.

    Of several recordings of a side it is the one with the highest peak.
    """

    rows: tuple[MemoryRow, ...]
    by: By
    before: tuple[PeakMemory, ...]
    """of every recording, the highest first"""
    after: tuple[PeakMemory, ...]
    gate: MemoryLimit | None

    @property
    def before_bytes(self) -> int:
        return self.before[0].peak_bytes

    @property
    def after_bytes(self) -> int:
        return self.after[0].peak_bytes

    @property
    def change_bytes(self) -> int:
        return self.after_bytes - self.before_bytes

    @property
    def is_exact(self) -> bool:
        return all(each.is_exact for each in (*self.before, *self.after))


def diff_memory(
    before: Sequence[Trace | Capture],
    after: Sequence[Trace | Capture],
    *,
    by: By = "line",
    own: tuple[str, ...] = (),
    gate: str | None = None,
    allow: Sequence[str] = (),
) -> MemoryDiff:
    """Compare the peaks of recordings; snapshots of torch, which have no GPU operations, are enough.

    gate: how much the peak may grow (`5%`, `512MiB`). allow: "gpu", if the number of GPUs may differ.

    Raises UsageError, and NotEnoughDataError for a recording without a history of the allocator.
    """
    if not before or not after:
        raise UsageError("expected at least one recording from before and one from after the change")
    if by not in get_args(By):
        raise UsageError(f"by must be one of {', '.join(get_args(By))} for memory, not {by!r}")
    if unknown := sorted(set(allow) - set(CHECKS)):
        raise UsageError(f"allow must be of {', '.join(CHECKS)}, not {unknown[0]!r}")
    limit = parse_memory_limit(gate) if gate is not None else None
    theirs, ours = ([_held(each, own) for each in side] for side in (before, after))
    return compare_memory(theirs, ours, by, limit, allow)


def _held(recording: Trace | Capture, own: tuple[str, ...]) -> PeakMemory:
    if not isinstance(recording, Trace):
        return of_capture(recording)
    if recording.window is not None:
        raise UsageError(
            f"memory is compared of whole recordings, not of {recording.window.text}: the history of the "
            "allocator covers the whole run"
        )
    return held(recording, own)


def of_capture(capture: Capture) -> PeakMemory:
    """Raises NotEnoughDataError if it has none."""
    if capture.memory is None:
        name = capture.origin.saved or capture.origin.path
        raise NotEnoughDataError(f"{name} has no history of torch's allocator: it needs {HOW}")
    return capture.memory


def compare_memory(
    before: Sequence[PeakMemory],
    after: Sequence[PeakMemory],
    by: By = "line",
    limit: Limit | None = None,
    allow: Sequence[str] = (),
) -> MemoryDiff:
    theirs, ours = (tuple(sorted(side, key=lambda each: -each.peak_bytes)) for side in (before, after))
    return MemoryDiff(
        rows=_rows(theirs[0], ours[0], by),
        by=by,
        before=theirs,
        after=ours,
        gate=_judged(limit, theirs, ours, "gpu" in allow) if limit is not None else None,
    )


def _rows(before: PeakMemory, after: PeakMemory, by: By) -> tuple[MemoryRow, ...]:
    rows: dict[tuple[object, ...], MemoryRow] = {}
    for part, line_before, is_removed in _aligned(before.parts, after.parts):
        key = (*_identity(part.place, by), part.place.phase, part.kind, is_removed and by == "line")
        old = rows.get(key) or MemoryRow(_key(part, by, is_removed), part.place, 0, part.kind, 0, 0)
        rows[key] = replace(
            old,
            before_bytes=old.before_bytes + part.bytes,
            line_before=old.line_before or (line_before if by == "line" else 0),
        )
    for part in after.parts:
        key = (*_identity(part.place, by), part.place.phase, part.kind, False)
        old = rows.get(key) or MemoryRow(_key(part, by), part.place, 0, part.kind, 0, 0)
        rows[key] = replace(old, place=part.place, after_bytes=old.after_bytes + part.bytes)
    return tuple(sorted(rows.values(), key=lambda row: (-abs(row.change_bytes), -row.after_bytes, row.key)))


def _identity(place: Place, by: By) -> tuple[object, ...]:
    """What distinguishes lines or functions. Why a line is unknown is no line: each reason is a row."""
    if place.frame is None:
        return ("", place.reason)
    if by == "function":
        return (place.frame.file, place.frame.function)
    return (place.frame.file, place.frame.line)


def _key(part: PeakPart, by: By, is_removed: bool = False) -> str:
    frame = part.place.frame
    if frame is None:
        where = part.place.reason
    else:
        where = f"{frame.file}:{frame.line if by == 'line' else frame.function}"
    return f"{where} {part.place.phase} {part.kind}" + (" (before)" if is_removed and by == "line" else "")


def _aligned(
    before: tuple[PeakPart, ...], after: tuple[PeakPart, ...]
) -> Iterator[tuple[PeakPart, int, bool]]:
    """The parts of the side before with the files and lines of the side after; the number that a line had
    if it moved, else 0; and whether its number is another line's now.
    """
    files = {old: new for new, old in same_files(_files(before), _files(after)).items()}
    renamed = [_in_file(part, files) for part in before]
    has_texts = all(any(part.source for part in side) for side in (before, after))
    lines = [_signatures(side, has_texts) for side in (renamed, after)]
    new_line = {old: new for new, old in same_lines(lines[0], lines[1]).items()}
    taken = {(file, number) for file, _, number in lines[1]}
    for part in renamed:
        frame = part.place.frame
        if frame is None:
            yield part, 0, False
        elif (now := new_line.get(_line(frame))) is None:
            yield part, 0, (frame.file, frame.line) in taken
        else:
            moved = replace(part.place, frame=replace(frame, line=now[2]))
            yield replace(part, place=moved), frame.line if now[2] != frame.line else 0, False


def _line(frame: Frame) -> Line:
    """Allocations know the plain name of a function, launches also its class: a line has both."""
    return frame.file, frame.function.rpartition(".")[2], frame.line


def _files(parts: Iterable[PeakPart]) -> set[str]:
    return {part.place.frame.file for part in parts if part.place.frame}


def _in_file(part: PeakPart, files: dict[str, str]) -> PeakPart:
    frame = part.place.frame
    if frame is None or frame.file not in files:
        return part
    return replace(part, place=replace(part.place, frame=replace(frame, file=files[frame.file])))


def _signatures(parts: Iterable[PeakPart], by_text: bool) -> dict[Line, Signature]:
    """A line is known by its text, where both sides have texts, else by what it allocates."""
    found: dict[Line, set[tuple[str, str]]] = {}
    for part in parts:
        if frame := part.place.frame:
            sign = ("", part.source) if by_text else (part.place.phase, part.kind)
            found.setdefault(_line(frame), set()).add(sign)
    return {line: frozenset(signs) for line, signs in found.items()}


def _judged(
    limit: Limit, before: tuple[PeakMemory, ...], after: tuple[PeakMemory, ...], other_gpus_allowed: bool
) -> MemoryLimit:
    """Neither all GPUs together nor the fullest of them may grow by more: a sum hides one of many."""
    counts = [{len(each.peaks) for each in side} for side in (before, after)]
    order = ("pass", "undecided", "fail")
    worst = max(
        (_grown(limit, [[of(each.peaks) for each in side] for side in (before, after)]) for of in (sum, max)),
        key=lambda each: (order.index(each.outcome), each.change_bytes - each.limit_bytes),
    )
    if counts[0] != counts[1] and not other_gpus_allowed:
        told = [" or ".join(map(str, sorted(side))) for side in counts]
        why = f"memory of {told[0]} GPUs before and of {told[1]} after; --allow gpu compares them"
        return replace(worst, outcome="undecided", why=why)
    # What is missing of a peak makes it higher: it hides growth after the change, and excuses it before.
    unsure = {"pass": after, "fail": before}.get(worst.outcome, ())
    if any(not each.is_exact for each in unsure):
        why = "a history is not complete, so its peak may have been higher"
        return replace(worst, outcome="undecided", why=why)
    return worst


def _grown(limit: Limit, peaks: list[list[int]]) -> MemoryLimit:
    """Of several recordings of a side all must agree about the outcome."""
    before, after = peaks
    limit_bytes = limit.of(max(before))
    low, high = min(after) - max(before), max(after) - min(before)
    outcome: Outcome = "fail" if low > limit_bytes else "pass" if high <= limit_bytes else "undecided"
    why = _RUNS_DIFFER if outcome == "undecided" else ""
    return MemoryLimit(f"+{limit.text}", limit_bytes, max(after) - max(before), outcome, why)
