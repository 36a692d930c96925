# SPDX-License-Identifier: Apache-2.0
"""Find the steady steps of a recording. The first steps load code, grow memory and autotune kernels."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.busy import Busy
from profiling_lab.records import dataclass
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import median, unique
from profiling_lab.trace.operation_classes import OperationClass
from profiling_lab.trace.step_windows import StepWindows, step_windows
from profiling_lab.trace.window import WindowSelection

LONG_PAUSE_NS = 100_000_000
FEWEST_STEPS, ENOUGH_STEPS = 2, 5
"""fewer steps do not show what is usual; the smaller number is for recordings that are mostly start-up"""
LIKE_THE_REST_FRAC = 1.5
"""a step is start-up while it takes more than this many times the median of the second half"""
MOST_FRAC = 0.5
"""at most this fraction of the steps is start-up"""


@dataclass(frozen=True, slots=True)
class StartUp:
    """The part of a recording before its steady steps."""

    first_step: int | None
    """the first steady step, counted from 0; None if there are no steps"""
    steps: int
    """the number of steps in the recording"""
    before_ns: int
    """from the first GPU operation to the first steady step"""

    def __str__(self) -> str:
        """`start-up: 5,126.8 ms before step 2 of 14 excluded; --whole includes them`"""
        until = (
            "the last long pause" if self.first_step is None else f"step {self.first_step} of {self.steps}"
        )
        return f"start-up: {self.before_ns / 1e6:,.1f} ms before {until} excluded; --whole includes them"


def steady_part(trace: Trace, steps_by: str | None) -> tuple[Trace, StartUp | None]:
    """The steady steps as a trace; the whole trace if steady steps cannot be found."""
    if trace.window is not None:
        return trace, None
    steps = step_windows(trace, steps_by)
    number = None if steps.sign == "window" else _first_steady(steps)
    if number is None or _gpu_frac_within(trace, steps) < MOST_FRAC:
        return _after_long_pauses(trace)
    first_ns = int(steps.start_ns[steps.number == number].min())
    before_ns = max(first_ns - int(trace.operations.start_ns.min()), 0)
    total = int(steps.number.max()) + 1
    span_ns = int(trace.operations.end_ns.max() - trace.operations.start_ns.min())
    if total < ENOUGH_STEPS and before_ns < MOST_FRAC * span_ns:
        return trace, None
    return trace.windowed(WindowSelection(step=f"{number}:{total}", steps_by=steps_by)), StartUp(
        number, total, before_ns
    )


def _gpu_frac_within(trace: Trace, steps: StepWindows) -> float:
    """The fraction of GPU time within the steps. Steps of a warm-up say nothing about what follows. Copies to
    the GPU before enough steps do not count: model and data are uploaded once, however little a step does.
    """
    operations, inside, uploads = trace.operations, 0, 0
    to_gpu = trace.classes == OperationClass.HOST_TO_DEVICE
    for process in unique(steps.process).tolist():
        mine = np.flatnonzero(steps.process == process)
        rows = np.flatnonzero(operations.process == process)
        at = np.searchsorted(steps.start_ns[mine], operations.start_ns[rows], "right") - 1
        hit = (at >= 0) & (operations.start_ns[rows] < steps.end_ns[mine[np.maximum(at, 0)]])
        inside += int(operations.duration_ns[rows[hit]].sum())
        uploads += int(operations.duration_ns[rows[(at < 0) & to_gpu[rows]]].sum())
    counted_ns = int(operations.duration_ns.sum()) - (uploads if len(steps) >= ENOUGH_STEPS else 0)
    return inside / max(counted_ns, 1)


def _after_long_pauses(trace: Trace) -> tuple[Trace, StartUp | None]:
    """Without usable steps: the part after the last long pause, if most GPU work is there."""
    operations = trace.operations
    busy = Busy.of(operations.start_ns, operations.end_ns)
    pauses = np.flatnonzero(busy.start_ns[1:] - busy.end_ns[:-1] >= LONG_PAUSE_NS)
    if not len(pauses):
        return trace, None
    from_ns = int(busy.start_ns[pauses[-1] + 1])
    after = operations.start_ns >= from_ns
    if int(operations.duration_ns[after].sum()) < MOST_FRAC * int(operations.duration_ns.sum()):
        return trace, None
    part = trace.windowed(WindowSelection(range=f"{from_ns - trace.first_ns}ns:"))
    return part, StartUp(None, 0, from_ns - int(operations.start_ns.min()))


def _first_steady(steps: StepWindows) -> int | None:
    """The latest first steady step of all processes, so that one number holds for all."""
    firsts = []
    for process in unique(steps.process).tolist():
        rows = np.flatnonzero(steps.process == process)
        if len(rows) < FEWEST_STEPS:
            return None
        took_ns = steps.end_ns[rows] - steps.start_ns[rows]
        usual_ns = float(median(took_ns[len(rows) // 2 :]))
        slow = took_ns[: int(MOST_FRAC * len(rows))] > LIKE_THE_REST_FRAC * usual_ns
        if len(rows) < ENOUGH_STEPS and not slow.any():
            return None  # nothing shows that the first step differs from the rest
        # The first step is never used: it may have begun before the recording.
        firsts.append(int(steps.number[rows[max(1, int(np.argmin(np.append(slow, False))))]]))
    return max(firsts)
