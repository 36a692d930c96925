# SPDX-License-Identifier: Apache-2.0
"""Which lines of the program are behind a row of a table, or why they are unknown."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage, coverage, reason_text, why_no_line
from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.attribution import BLEED_NS, Match, Phase, Reason
from profiling_lab.trace.columns import I32, I64, U8, OperationKind, Trait, dense, full
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace

_NO_STACK = "no Python stack"


@dataclass(frozen=True, slots=True)
class Place:
    """One line of user code and its part of a row; or a part without a line, and the reason."""

    frame: Frame | None
    phase: str
    """'forward' (everything outside of backward), 'backward', or 'unknown'"""
    reason: str
    """why there is no line; '' where there is one"""
    within: str
    """the innermost range or operator around the launch, where there is no line; '' none"""
    ns: int
    count: int
    share_frac: float
    """of the row"""

    @property
    def key(self) -> str:
        """What distinguishes places, whatever the phase."""
        return f"{self.frame.file}:{self.frame.line}" if self.frame else f"{self.within}:{self.reason}"


@dataclass(frozen=True, slots=True)
class Placed:
    """A place per event, as a number."""

    number: I32
    line_number: I32
    """the same, for lines of whatever phase"""
    frames: tuple[Frame | None, ...]
    """by number, as the columns that follow"""
    phase: tuple[str, ...]
    reason: tuple[str, ...]
    within: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """What distinguishes places, whatever the phase: the line, or the range around and the reason."""
        lines = zip(self.frames, self.within, self.reason, strict=True)
        return tuple(
            f"{frame.file}:{frame.line}" if frame else f"{within}:{reason}" for frame, within, reason in lines
        )

    def by_key(
        self, key: npt.NDArray[np.integer], weight: I64, shown: list[int]
    ) -> dict[int, tuple[Place, ...]]:
        """For each key that is shown its places, the heaviest first. Negative keys are left out."""
        sums = PlaceSums(self, shown)
        sums.add(key, self.number, weight)
        return sums.places()


class PlaceSums:
    """Sums the weight of events by key and place, for the keys that are shown."""

    def __init__(self, placed: Placed, shown: list[int]) -> None:
        self._placed = placed
        self._shown = shown
        self._sums: dict[tuple[int, int], list[int]] = {}

    def add(self, key: npt.NDArray[np.integer], place: I32, weight: I64) -> None:
        """Events with their key (negative: left out), their place (Placed.number) and their weight."""
        wanted = np.zeros(int(key.max(initial=-1)) + 2, dtype=bool)
        wanted[[k for k in self._shown if k < len(wanted) - 1]] = True
        rows = np.flatnonzero(wanted[key])  # -1 looks up the last entry, which is never wanted
        pair = key[rows].astype(np.int64) << 32 | place[rows]
        number, distinct = dense(pair)
        total, count = _analysis.sum_by_key(number, np.ascontiguousarray(weight[rows]), len(distinct))
        for value, ns, events in zip(distinct.tolist(), total.tolist(), count.tolist(), strict=True):
            entry = self._sums.setdefault((value >> 32, value & 0xFFFFFFFF), [0, 0])
            entry[0] += ns
            entry[1] += events

    def places(self) -> dict[int, tuple[Place, ...]]:
        """For each key that is shown its places, the heaviest first."""
        placed = self._placed
        found: dict[int, list[Place]] = {k: [] for k in self._shown}
        for (key, place), (ns, events) in self._sums.items():
            found[key].append(
                Place(
                    frame=placed.frames[place],
                    phase=placed.phase[place],
                    reason=placed.reason[place],
                    within=placed.within[place],
                    ns=ns,
                    count=events,
                    share_frac=0.0,
                )
            )
        return {key: shares(places) for key, places in found.items()}


def shares(places: list[Place]) -> tuple[Place, ...]:
    """In order, each with its share: of the time, or of the events where there is no time."""
    all_ns, events = sum(p.ns for p in places), sum(p.count for p in places)
    ordered = sorted(places, key=lambda p: (-p.ns, -p.count, p.phase, p.reason, p.within, str(p.frame)))
    return tuple(
        replace(place, share_frac=place.ns / all_ns if all_ns else place.count / events) for place in ordered
    )


def operation_places(trace: Trace, own_row: I32) -> Placed:
    """Per GPU operation the line it is attributed to, in backward that of forward (see Attribution).

    own_row: per stack the row of its innermost own frame (Stacks.own_rows).
    """
    found = trace.attribution
    return _placed(trace, own_row, found.stack, found.phase, why_no_line(trace, own_row), found.range)


def launched_at(
    trace: Trace, rows: npt.NDArray[np.intp], own: tuple[str, ...]
) -> tuple[tuple[Place, ...], I32]:
    """The places of some operations, and per operation the number of its own."""
    placed = operation_places(trace, trace.stacks.own_rows(Ownership(own)))
    used, number = np.unique(placed.number[rows], return_inverse=True)
    places = tuple(
        Place(placed.frames[i], placed.phase[i], placed.reason[i], placed.within[i], 0, 0, 0.0)
        for i in used.tolist()
    )
    return places, number.astype(np.int32)


def ran_in_backward(trace: Trace, own_row: I32) -> I32:
    """Per GPU operation the row of your own Python that launched it inside of backward, where that is a
    hook or the backward of a Function, and not the forward line it is attributed to; 0 for all others.
    """
    found, stacks = trace.attribution, trace.stacks
    own_stack = np.append(trace.calls.stack, np.int32(0))[found.call]
    inside = stacks.inside_engine(own_row)[own_stack] & (found.match != Match.OWN) & ~_replayed(trace)
    return np.where(inside & (found.phase == Phase.BACKWARD), own_row[own_stack], np.int32(0))


def _replayed(trace: Trace) -> npt.NDArray[np.bool_]:
    """Per GPU operation whether the call that launched it replayed a graph, and another had captured it."""
    author = trace.operations.author
    return np.zeros(len(trace.operations), dtype=np.bool_) if author is None else author >= 0


def call_stacks(trace: Trace) -> I32:
    """Per call the stack it is attributed to: in backward that of the forward line, if it launched
    something.
    """
    stack = trace.calls.stack.copy()
    if len(trace.operations):
        found = trace.attribution
        known = (found.call >= 0) & (found.stack > 0) & ~_replayed(trace)
        stack[found.call[known]] = found.stack[known]
    return stack


def call_places(trace: Trace, own_row: I32) -> Placed:
    """Per API call the line it was made from; in backward that of forward, where its operation has it."""
    calls = trace.calls
    stack = call_stacks(trace)
    backward = (calls.traits & Trait.IS_BACKWARD) > 0
    phase = np.where(backward, Phase.BACKWARD, Phase.FORWARD).astype(np.uint8)
    why = full(len(calls), Reason.NO_STACK, np.int32)
    if len(trace.operations):
        found = trace.attribution
        launched = np.flatnonzero(found.call >= 0)
        of = found.call[launched]
        phase[of], why[of] = found.phase[launched], why_no_line(trace, own_row)[launched]
    # Those that launched nothing, and have frames, have only a library's.
    why[(stack > 0) & (why == Reason.NO_STACK)] = len(Reason)
    return _placed(trace, own_row, stack, phase, why, None)


def _placed(trace: Trace, own_row: I32, stack: I32, phase: U8, why: I32, around: I32 | None) -> Placed:
    """`around`: the innermost range of each event; None stands for calls, whose ranges are looked up."""
    stacks, names = trace.stacks, trace.ranges.names
    row = own_row[stack]
    frame, lines = line_numbers(stacks.frames)
    has_line = row > 0
    within = full(len(stack), 0, np.int64)
    if len(names) and not has_line.all():
        around = _ranges_around_calls(trace) if around is None else around
        within = np.append(trace.ranges.name, np.int32(-1))[around].astype(np.int64) + 1
    reasons = int(why.max(initial=0)) + 1
    without_line = len(lines) + within * reasons + why
    code = np.where(has_line, frame[stacks.frame[row]], without_line).astype(np.int64)
    line_number, _ = dense(code)
    number, distinct = dense(code * len(Phase) + phase)
    kinds = [divmod(value, len(Phase)) for value in distinct.tolist()]
    parts = [divmod(code - len(lines), reasons) if code >= len(lines) else (0, 0) for code, _ in kinds]
    return Placed(
        number=number,
        line_number=line_number,
        frames=tuple(lines[code] if code < len(lines) else None for code, _ in kinds),
        phase=tuple(Phase(p).name.lower() for _, p in kinds),
        reason=tuple(_reason(trace, number) for _, number in parts),
        within=tuple(names[name - 1] if name else "" for name, _ in parts),
    )


def _reason(trace: Trace, number: int) -> str:
    if number == Reason.NO_STACK:  # whose calls these are the row says
        return _NO_STACK
    return reason_text(trace, number) if number else ""


def line_numbers(frames: tuple[Frame, ...]) -> tuple[I32, list[Frame]]:
    """Per frame the number of its line, and a frame for each line: one line may have several functions."""
    numbers: dict[tuple[str, int], int] = {}
    lines: list[Frame] = []
    of_frame = []
    for frame in frames:
        if (frame.file, frame.line) not in numbers:
            numbers[frame.file, frame.line] = len(lines)
            lines.append(frame)
        of_frame.append(numbers[frame.file, frame.line])
    return np.array(of_frame, dtype=np.int32), lines


def _ranges_around_calls(trace: Trace) -> I32:
    """Per call the innermost range of the default domain around it, -1 none."""
    ranges, calls = trace.ranges, trace.calls
    rows = np.flatnonzero(ranges.domain == 0).astype(np.int32)
    _, innermost, _ = _analysis.contain(
        ranges.start_ns[rows],
        ranges.end_ns[rows],
        ranges.thread[rows],
        calls.start_ns,
        calls.thread,
        BLEED_NS,
    )
    return np.append(rows, np.int32(-1))[innermost]


class LineNumbers:
    """The lines of a trace, as far as they are the user's own (see Ownership)."""

    def __init__(self, trace: Trace, own: tuple[str, ...]) -> None:
        self.trace = trace
        self.ownership = Ownership(own)

    def time_by_line(self) -> I64:
        """GPU time by number of the line it is attributed to."""
        return _analysis.sum_by_key(
            self.operation_place, self.trace.operations.duration_ns, len(self._lines[1])
        )[0]

    def kernels_by_line(self) -> tuple[I64, I64]:
        """GPU time and number of kernels by number of their line."""
        lines = len(self._lines[1])
        operations = self.trace.operations
        kernels = operations.kind == OperationKind.KERNEL
        place = np.where(kernels, self.operation_place, -1).astype(np.int32)
        return _analysis.sum_by_key(place, operations.duration_ns, lines)

    @cached_property
    def _lines(self) -> tuple[I32, list[Frame]]:
        return line_numbers(self.trace.stacks.frames)

    @cached_property
    def own_row(self) -> I32:
        """Per stack the row of its innermost frame in the user's own code, 0 if it has none."""
        return self.trace.stacks.own_rows(self.ownership)

    def place_of_stack(self, stack: I32) -> I32:
        """Per stack given the number of the line that it leads to, -1 without one."""
        own_row = self.own_row[stack]
        frame = self.trace.stacks.frame[own_row]
        return np.where(own_row > 0, self._lines[0][frame], -1).astype(np.int32)

    @cached_property
    def operation_place(self) -> I32:
        """Per operation the number of the line it is attributed to, -1 without one."""
        return self.place_of_stack(self.trace.attribution.stack)

    @cached_property
    def call_place(self) -> I32:
        """Per call the number of the line it was made from, in backward that of forward; -1 without one."""
        return self.place_of_stack(call_stacks(self.trace))

    @cached_property
    def range_place(self) -> I32:
        return self.place_of_stack(self.trace.ranges.stack)

    @property
    def lines(self) -> int:
        """How many there are."""
        return len(self._lines[1])

    def place(self, number: int) -> Frame | None:
        return self._lines[1][number] if number >= 0 else None

    @cached_property
    def _ran_place(self) -> I32:
        """Per operation the number of the line of your own backward that launched it, -1 if none did."""
        row = ran_in_backward(self.trace, self.own_row)
        return np.where(row > 0, self._lines[0][self.trace.stacks.frame[row]], -1).astype(np.int32)

    def hottest_line(self, rows: I64, weight: I64) -> Frame | None:
        """The line with most of the weight of these operations; `weight` is per row given. Where most of that
        was launched by a backward of your own (of a torch.autograd.Function, or a hook), the line in there.
        """
        line = self.operation_place[rows]
        most = _heaviest(line, weight)
        at_line = np.flatnonzero(line == most)
        ran, its = self._ran_place[rows[at_line]], weight[at_line]
        if most >= 0 and its[ran >= 0].sum() > its.sum() / 2:
            most = _heaviest(ran[ran >= 0], its[ran >= 0])
        return self.place(most)


def _heaviest(number: I32, weight: I64) -> int:
    """The number with most of the weight, -1 of none."""
    parts = grouped(np.arange(len(number)), number)
    return max(((int(weight[part].sum()), one) for one, part in parts), default=(0, -1))[1]


def covered(trace: Trace, own: tuple[str, ...] | None) -> tuple[I32, Coverage]:
    """Own rows of the stacks, and the coverage; of a trace in which nothing ran on a GPU that of nothing."""
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    if len(trace.operations):
        return own_row, coverage(trace, own_row)
    return own_row, Coverage(0, 0, 0, 0, 0, 0, 0, 0, 0, (), (trace.why_empty(),))
