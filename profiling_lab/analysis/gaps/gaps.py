# SPDX-License-Identifier: Apache-2.0
"""Why the GPU was idle: every piece of every gap charged to its cause, never a whole gap to a first match.

A gap ends with an operation, and that one's launch cuts it in three: before it the host was late, and what
its thread did is the cause; then it was inside of the launching call; after that it had done its part.
"""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.coverage import Coverage, coverage
from profiling_lab.analysis.device_spans import device_spans
from profiling_lab.analysis.gaps.causes import UNKNOWN
from profiling_lab.analysis.gaps.pieces import GapPieces, gap_pieces
from profiling_lab.analysis.gaps.rows import GapRow, gap_rows
from profiling_lab.analysis.host.activity import ActivityKind, call_kinds
from profiling_lab.analysis.steps import PARTS, part_times
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, dense, full, unique
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.step_windows import StepWindows, step_windows
from profiling_lab.trace.trace import Trace

__all__ = ["GapRow", "GapsResult", "gaps"]


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
    """idle time without a known cause"""
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
    """time in which the host could not launch because the GPU was behind, as far as the trace shows"""
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
    inside_ns = _inside(found, pieces) if has_steps else None
    samples = trace.whole.samples(Ownership(own or ()))
    rows = gap_rows(trace, pieces, own_row, inside_ns, steps, samples)
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


def _inside(found: StepWindows, pieces: GapPieces) -> I64:
    """Per piece how much of it is in a step of its process."""
    out = full(len(pieces.start_ns), 0)
    for process in unique(pieces.process).tolist():
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
    rows = np.flatnonzero((call_kinds(calls) == ActivityKind.WAIT) & trace.calls_inside)
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
