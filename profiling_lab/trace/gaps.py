# SPDX-License-Identifier: Apache-2.0
"""Why the GPU was idle: every piece of every gap charged to its cause, never a whole gap to a first match.

A gap ends with an operation, and that one's launch cuts it in three: before it the host was late, and what
its thread did is the cause; then it was inside of the launching call; after that it had done its part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.errors import UsageError
from profiling_lab.trace.columns import I32, I64, dense, full
from profiling_lab.trace.coverage import Coverage, coverage
from profiling_lab.trace.device_spans import device_spans
from profiling_lab.trace.gap_causes import CAUSES, UNKNOWN, Cause
from profiling_lab.trace.gap_pieces import GapPieces, gap_pieces
from profiling_lab.trace.host_activity import Doing, call_kinds
from profiling_lab.trace.lines import own_frames
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.step_windows import StepWindows, step_windows
from profiling_lab.trace.steps import PARTS, part_times
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class GapRow:
    """Idle time of one cause at one line of the program."""

    key: str
    """stable over runs of the same program"""
    cause: str
    """one of gap_causes.CAUSES' texts"""
    what: str
    """the call, the range or the blocking function, '' where there is none"""
    frame: Frame | None
    """the user's line; None where none is known"""
    exact: bool
    """the host was in this line; else it was between a line of `after` and the call that this line made"""
    after: tuple[tuple[Frame, int], ...]
    """lines of the calls before, each with its idle time, the largest first"""
    idle_ns: int
    pieces: int
    in_steps_ns: int
    """the part of it inside of steps"""
    per_step_ns: int | None
    """`in_steps_ns` per step and device; None where the trace has no steps"""
    share_frac: float
    """of all idle time"""


@dataclass(frozen=True, slots=True)
class GapsResult:
    """Causes by idle time per step, the largest first. Over all rows they sum to `idle_ns` exactly."""

    rows: tuple[GapRow, ...]
    coverage: Coverage
    idle_ns: int
    """between the first and the last operation of each device, as far as the window has it; of all devices"""
    span_ns: int
    gaps: int
    unknown_ns: int
    """idle time whose cause the trace does not tell"""
    parts_ns: tuple[int, ...]
    """of the span: compute, communication, copy, idle (steps.PARTS); see StepRow"""
    steps: int
    """0 where the trace has no steps"""
    how: str
    """by what the steps were found"""
    host_waits: int
    host_wait_ns: int
    """calls in which the host waited for the GPU, and their time between its first and last operation: once
    per thread"""
    queue_full_ns: int
    """time in which the host could not launch because the GPU was behind, as far as the trace tells"""
    late_frac: float | None
    """operations whose launch was not yet made when the GPU had run dry; None where no launch is recorded"""
    total_matched: int

    @property
    def truncated(self) -> bool:
        return self.total_matched > len(self.rows)

    @property
    def idle_frac(self) -> float:
        return self.idle_ns / self.span_ns if self.span_ns else 0.0

    @property
    def bound_by(self) -> str:
        """The part that takes most of the wall."""
        return PARTS[int(np.argmax(self.parts_ns))]


def gaps(
    trace: Trace, steps_by: str | None = None, own: tuple[str, ...] | None = None, limit: int | None = None
) -> GapsResult:
    """Charge all GPU idle time to causes. steps_by: which ranges are the steps, see `step_windows`.

    Raises UsageError, and NotEnoughDataError if the trace has no GPU operation or `steps_by` matches nothing.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    found = step_windows(trace, steps_by)
    pieces = gap_pieces(trace)
    own_row = trace.stacks.own_rows(Ownership(own or ()))
    spans = device_spans(trace)
    has_steps = found.sign != "window"
    steps = sum(int((found.process == process).sum()) for process, _ in spans.devices) if has_steps else 0
    rows = _rows(trace, pieces, own_row, _inside(found, pieces) if has_steps else None, steps)
    idle_ns = int((pieces.end_ns - pieces.start_ns).sum())
    parts = tuple(part_times(trace, spans.start_ns, spans.end_ns, spans.number).sum(axis=0).tolist())
    waits, wait_ns = _host_waits(trace)
    launched = int((trace.attribution.call >= 0).sum())
    return GapsResult(
        rows=tuple(rows[:limit]),
        coverage=coverage(trace, own_row),
        idle_ns=idle_ns,
        span_ns=sum(parts),
        gaps=pieces.gaps,
        unknown_ns=sum(row.idle_ns for row in rows if row.cause in UNKNOWN),
        parts_ns=parts,
        steps=steps,
        how=found.how,
        host_waits=waits,
        host_wait_ns=wait_ns,
        queue_full_ns=pieces.queue_full_ns,
        late_frac=pieces.late_gaps / launched if launched else None,
        total_matched=len(rows),
    )


def _rows(trace: Trace, pieces: GapPieces, own_row: I32, inside_ns: I64 | None, steps: int) -> list[GapRow]:
    """Rows per (cause, what, line); Python looks at each distinct combination once."""
    idle_ns = pieces.end_ns - pieces.start_ns
    line, after = own_row[pieces.stack], own_row[pieces.after]
    number, distinct = _combined(pieces.cause, pieces.what, line, pieces.exact.astype(np.int32), after)
    total, count = _analysis.sum_by_key(number, idle_ns, len(distinct))
    inside = total
    if inside_ns is not None:
        inside, _ = _analysis.sum_by_key(number, inside_ns, len(distinct))
    sums: dict[tuple[Cause, str, Frame | None, bool], list[int]] = {}
    afters: dict[tuple[Cause, str, Frame | None, bool], dict[Frame, int]] = {}
    for i, (cause, what, row, exact, after_row) in enumerate(distinct):
        frame, before = _frame(trace, own_row, row), _frame(trace, own_row, after_row)
        kind = Cause(cause)
        # Where there is a line it tells more than the operator or range around the host's code.
        shown = "" if frame and kind in (Cause.HOST_CODE, Cause.AFTER_WAIT) else pieces.names[what]
        key = (kind, shown, frame, bool(exact) and frame is not None)
        entry = sums.setdefault(key, [0, 0, 0])
        for j, value in enumerate((total[i], inside[i], count[i])):
            entry[j] += int(value)
        if before is not None and not exact:
            there = afters.setdefault(key, {})
            there[before] = there.get(before, 0) + int(total[i])
    all_ns = int(idle_ns.sum())
    rows = [
        GapRow(
            key=f"{CAUSES[cause]}:{what}:{f'{frame.file}:{frame.line}' if frame else ''}:{int(exact)}",
            cause=CAUSES[cause],
            what=what,
            frame=frame,
            exact=exact,
            after=tuple(
                sorted(afters.get((cause, what, frame, exact), {}).items(), key=lambda a: (-a[1], a[0]))
            ),
            idle_ns=ns,
            pieces=times,
            in_steps_ns=in_steps if steps else 0,
            per_step_ns=in_steps // steps if steps else None,
            share_frac=ns / all_ns if all_ns else 0.0,
        )
        for (cause, what, frame, exact), (ns, in_steps, times) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-(row.in_steps_ns if steps else row.idle_ns), -row.idle_ns, row.key))


def _combined(*columns: npt.NDArray[np.integer]) -> tuple[I32, list[tuple[int, ...]]]:
    """A number per distinct combination, and the combinations."""
    number = np.zeros(len(columns[0]), dtype=np.int32)
    for column in columns:
        local, distinct = dense(np.asarray(column, dtype=np.int64))
        number, _ = dense(number.astype(np.int64) * (len(distinct) + 1) + local)
    size = int(number.max()) + 1 if len(number) else 0
    first = np.zeros(size, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return number, [tuple(int(column[i]) for column in columns) for i in first.tolist()]


def _frame(trace: Trace, own_row: I32, row: int) -> Frame | None:
    frames = own_frames(trace.stacks, own_row, row)
    return frames[0] if frames else None


def _inside(found: StepWindows, pieces: GapPieces) -> I64:
    """Per piece how much of it lies in a step of its process."""
    out = full(len(pieces.start_ns), 0)
    for process in np.unique(pieces.process).tolist():
        mine = pieces.process == process
        starts, ends = found.start_ns[found.process == process], found.end_ns[found.process == process]
        if len(starts):
            out[mine] = _before(pieces.end_ns[mine], starts, ends) - _before(
                pieces.start_ns[mine], starts, ends
            )
    return out


def _before(time_ns: I64, starts: I64, ends: I64) -> I64:
    """The time covered by disjoint windows before each moment."""
    at = np.searchsorted(starts, time_ns, side="right") - 1
    passed = np.concatenate([[0], np.cumsum(ends - starts)])
    now = np.minimum(time_ns, ends[at]) - starts[at]
    covered: I64 = np.where(at >= 0, passed[at] + now, 0)
    return covered


def _host_waits(trace: Trace) -> tuple[int, int]:
    calls = trace.calls
    rows = np.flatnonzero((call_kinds(calls) == Doing.WAIT) & trace.calls_inside)
    if not len(rows):
        return 0, 0
    span = (trace.whole.operations.start_ns.min(), trace.whole.operations.end_ns.max())
    start_ns, end_ns = calls.start_ns[rows].clip(*span), calls.end_ns[rows].clip(*span)
    parts = np.arange(len(rows))
    if trace.window is not None:
        parts, start_ns, end_ns = trace.window.host.cut(calls.process[rows], start_ns, end_ns)
    thread, distinct = dense(calls.thread[rows[parts]])
    busy = _analysis.busy_ns(start_ns, end_ns, thread, len(distinct))
    return len(rows), int(busy.sum())
