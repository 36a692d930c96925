# SPDX-License-Identifier: Apache-2.0
"""Where the steps of a program begin and end: the first of five signs that the trace has."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.trace.columns import I32, I64, dense
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.spans import Window
from profiling_lab.trace.trace import Trace

PROFILER_STEP = re.compile(r"^ProfilerStep#\d+$")
_STEP_NAME = re.compile(
    r"(?i)^((train|training|inference|model|global)?[ _]?(step|iteration|iter|batch))[ _#:]*\d*$"
)
_OPTIMIZER_RANGE = re.compile(r"^Optimizer\.step#")
_OPTIMIZER_FILES = "/torch/optim/"
# Ranges that never ended, and damaged ones, reach beyond what the file can mean: 73 years.
_FARTHEST_NS = 1 << 61
# What a repeating part must cover of all launches before it is taken for the steps.
_PERIOD_COVERS_FRAC = 0.5
# Launches without a recorded call may be so many before calls no longer tell the order.
_UNRECORDED_FRAC = 0.01


@dataclass(frozen=True, slots=True)
class StepWindows:
    """Steps in time order per process. They never overlap in one process."""

    sign: str
    """'ProfilerStep', 'range', 'optimizer', 'period' or 'window': by what the steps were found"""
    how: str
    """the same as a sentence"""
    clock: str
    """'gpu': from the first operation that a step launched to the first that the next one launched; 'host':
    as the program's own marks have it"""
    start_ns: I64
    end_ns: I64
    host_start_ns: I64
    """the same on the host, where they begin and end at other times if `clock` is 'gpu'"""
    host_end_ns: I64
    process: I32
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    def only(self, rows: npt.NDArray[np.intp]) -> StepWindows:
        """Some of the steps."""
        return replace(
            self,
            start_ns=self.start_ns[rows],
            end_ns=self.end_ns[rows],
            host_start_ns=self.host_start_ns[rows],
            host_end_ns=self.host_end_ns[rows],
            process=self.process[rows],
            names=tuple(self.names[row] for row in rows.tolist()),
        )


_Found = tuple[I64, I64, list[str]]


def step_windows(trace: Trace, steps_by: str | None = None) -> StepWindows:
    """Find the steps of each process. In a window of a trace: those that lie wholly in it, or else its parts.

    steps_by: a regular expression; the NVTX ranges (or annotations) whose names it matches are the steps.
    Without it, in this order: ProfilerStep ranges; ranges named like a step (`training_step`, `iteration 3`);
    from one optimizer.step to the next; the period of the launches; the whole window as one step.

    Raises UsageError if `steps_by` is no regular expression, NotEnoughDataError if no range matches it or the
    trace has no GPU operation.
    """
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    if trace.window is not None:
        return _within(step_windows(trace.whole, steps_by), trace.window)
    if steps_by is not None:
        try:
            wanted = re.compile(steps_by)
        except re.error as error:
            raise UsageError(f"--steps-by expects a regular expression, not {steps_by!r}: {error}") from None
        found = _everywhere(trace, lambda process: _ranges(trace, process, wanted))
        if found is None:
            raise NotEnoughDataError(f"{trace.path} has no finished range that matches {steps_by!r}")
        return _on_the_gpu(trace, _windows("range", f"ranges that match {steps_by!r}", found))
    signs: tuple[tuple[str, str, Callable[[int], _Found | None]], ...] = (
        ("ProfilerStep", "ProfilerStep ranges", lambda p: _ranges(trace, p, PROFILER_STEP)),
        ("range", "ranges named like a step", lambda p: _ranges(trace, p, _STEP_NAME, at_least=2)),
        ("optimizer", "from the end of one optimizer.step to the next", lambda p: _optimizer(trace, p)),
        (
            "period",
            "the period in which launches repeat (of one step alone: its layers)",
            lambda p: _period(trace, p),
        ),
    )
    for sign, how, look in signs:
        found = _everywhere(trace, look)
        if found is not None:
            names = sorted({re.sub(r"\d+$", "", n) for _, (_, _, each) in found for n in each})
            windows = _windows(sign, f"{how} ({', '.join(names[:3])})" if sign == "range" else how, found)
            # What was recorded of a step with a pause of the recording in it is not all of the step.
            pauses = trace.pauses.spans
            known = ~pauses.touch(windows.process, windows.host_start_ns, windows.host_end_ns)
            if not known.any():
                continue
            windows = windows.only(np.flatnonzero(known))
            # ProfilerSteps follow each other without a break: nothing falls between them.
            return windows if sign == "ProfilerStep" else _on_the_gpu(trace, windows)
    whole = _everywhere(trace, lambda p: _window(trace, p))
    return _windows(
        "window", "the whole window as one: nothing in the trace tells its steps apart", whole or []
    )


def _within(steps: StepWindows, window: Window) -> StepWindows:
    """Steps of which a window holds a part only would be compared with whole ones: they are left out."""
    spans = window.gpu if steps.clock == "gpu" else window.host
    whole = np.flatnonzero(spans.hold(steps.process, steps.start_ns, steps.end_ns))
    if len(whole) and steps.sign != "window":
        return steps.only(whole)
    spans = window.gpu
    names = tuple("window" if len(spans) == 1 else f"window #{i}" for i in range(1, len(spans) + 1))
    parts = "the window as one" if len(spans) == 1 else f"the {len(spans)} parts of the window"
    how = f"{parts}: no whole step is inside (of those by {steps.sign})"
    times = (spans.start_ns, spans.end_ns)
    return StepWindows("window", how, "gpu", *times, *times, spans.process, names)


def _everywhere(trace: Trace, look: Callable[[int], _Found | None]) -> list[tuple[int, _Found]] | None:
    """What is found in each process that used a GPU; None if nowhere."""
    found = [(p, look(p)) for p in np.unique(trace.operations.process).tolist()]
    return [(p, f) for p, f in found if f is not None] or None


def _windows(sign: str, how: str, found: list[tuple[int, _Found]]) -> StepWindows:
    times = (np.concatenate([f[0] for _, f in found]), np.concatenate([f[1] for _, f in found]))
    return StepWindows(
        sign,
        how,
        "host",
        *times,
        *times,
        np.concatenate([np.full(len(f[0]), p, dtype=np.int32) for p, f in found]),
        tuple(name for _, f in found for name in _told_apart(f[2])),
    )


def _told_apart(names: list[str]) -> list[str]:
    """Ranges of one name get numbers."""
    if len(set(names)) == len(names):
        return names
    return [f"{name} #{i}" for i, name in enumerate(names, 1)]


def _on_the_gpu(trace: Trace, steps: StepWindows) -> StepWindows:
    """The same steps by the operations they launched: the host may be far ahead of the GPU.

    A step lasts until the next one begins on the GPU, or until its own last operation ends where other work
    was launched between the two or the recording paused. Steps stay on the host's clock where one launched
    nothing that is recorded or where steps mix on the GPU.
    """
    if steps.sign == "period" and _launches_are_missing(trace):
        return replace(steps, clock="gpu")  # it was found on that clock
    start_ns, end_ns = steps.start_ns.copy(), steps.end_ns.copy()
    for process in np.unique(steps.process).tolist():
        mine = np.flatnonzero(steps.process == process)
        first, last, follows = launched_spans(trace, process, steps.start_ns[mine], steps.end_ns[mine])
        between = (steps.end_ns[mine][:-1], steps.start_ns[mine][1:])
        follows[:-1] |= trace.pauses.spans.touch(steps.process[mine][1:], *between)
        last[:-1] = np.where(follows[:-1], np.minimum(last[:-1], first[1:]), first[1:])
        if (last <= first).any():
            return steps
        start_ns[mine], end_ns[mine] = first, last
    return replace(steps, clock="gpu", start_ns=start_ns, end_ns=end_ns)


def launched_spans(
    trace: Trace, process: int, start_ns: I64, end_ns: I64
) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """Disjoint stretches of a process' host time on the GPU: from the start of the first operation that was
    launched in each to the end of the last, and whether others were launched between it and the next one.

    A stretch that launched nothing begins at int64's maximum and ends at its minimum.
    """
    operations, call = trace.operations, trace.attribution.call
    rows = np.flatnonzero((operations.process == process) & (call >= 0))
    launched_ns = trace.calls.start_ns[call[rows]]
    number = np.searchsorted(start_ns, launched_ns, side="right") - 1
    inside = (number >= 0) & (launched_ns < end_ns[number])
    first = np.full(len(start_ns), np.iinfo(np.int64).max)
    last = np.full(len(start_ns), np.iinfo(np.int64).min)
    np.minimum.at(first, number[inside], operations.start_ns[rows[inside]])
    np.maximum.at(last, number[inside], operations.end_ns[rows[inside]])
    follows = np.bincount(number[(number >= 0) & ~inside], minlength=len(start_ns)) > 0
    return first, last, follows


def _ranges(trace: Trace, process: int, name: re.Pattern[str], at_least: int = 1) -> _Found | None:
    """The outermost matching ranges of the thread that has most of them."""
    ranges = trace.ranges
    matches = np.array([bool(name.search(text)) for text in ranges.names] or [False], dtype=bool)
    whole = (ranges.start_ns > -_FARTHEST_NS) & (ranges.end_ns < _FARTHEST_NS)
    rows = np.flatnonzero(matches[ranges.name] & (ranges.process == process) & whole)
    if len(rows) < at_least:
        return None
    thread = np.bincount(ranges.thread[rows]).argmax()
    rows = rows[ranges.thread[rows] == thread]
    rows = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows]))]
    outermost = []
    until = np.iinfo(np.int64).min
    for row in rows.tolist():
        if ranges.start_ns[row] >= until and ranges.end_ns[row] > ranges.start_ns[row]:
            outermost.append(row)
            until = ranges.end_ns[row]
    if len(outermost) < at_least:
        return None
    return (
        ranges.start_ns[outermost],
        ranges.end_ns[outermost],
        [ranges.names[ranges.name[row]] for row in outermost],
    )


def _optimizer(trace: Trace, process: int) -> _Found | None:
    """Between the ends of successive optimizer.step calls; before the first end there is no whole step."""
    if (marked := _ranges(trace, process, _OPTIMIZER_RANGE, at_least=2)) is not None:
        return _between(trace, marked[1])
    stacks, calls = trace.stacks, trace.calls
    files = tuple({frame.file for frame in stacks.frames if _OPTIMIZER_FILES in frame.file})
    if not files:
        return None
    rows = _launches(trace, process)
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    inside = stacks.passes_through(files, ("step",))[calls.stack[rows]] > 0
    last = np.flatnonzero(inside & ~np.append(inside[1:], False))
    return _between(trace, calls.end_ns[rows[last]]) if len(last) >= 2 else None


def _between(trace: Trace, ends_ns: I64) -> _Found:
    """From one end to the next; a window of the recording that begins with a step begins one as well."""
    ends_ns = np.union1d(ends_ns, trace.pauses.step_starts_ns)
    return ends_ns[:-1], ends_ns[1:], [f"step {i}" for i in range(2, len(ends_ns) + 1)]


def _launches(trace: Trace, process: int) -> npt.NDArray[np.intp]:
    """Rows of the calls of a process that made a GPU operation."""
    call = trace.attribution.call[trace.operations.process == process]
    return np.unique(call[call >= 0]).astype(np.intp)


def _period(trace: Trace, process: int) -> _Found | None:
    """Repetitions of the sequence of (kernel, line)."""
    operations, found = trace.operations, trace.attribution
    rows = np.flatnonzero(operations.process == process)
    launched = found.call[rows] >= 0
    if _launches_are_missing(trace):
        time_ns = operations.start_ns[rows]
    else:
        rows = rows[launched]
        time_ns = trace.calls.start_ns[found.call[rows]]
    order = np.argsort(time_ns, kind="stable")
    rows, time_ns = rows[order], time_ns[order]
    own = trace.stacks.own_rows(Ownership())[found.stack[rows]]
    symbols, _ = dense(operations.name[rows].astype(np.int64) << 32 | own)
    first, length, times = _analysis.period_of(symbols)
    if length * times < _PERIOD_COVERS_FRAC * len(rows) or not length:
        return None
    at = first + length * np.arange(times + 1)
    starts = time_ns[at[:-1]]
    # A last repetition that ends with the trace ends with its last operation.
    after = time_ns[at[-1]] if at[-1] < len(rows) else operations.end_ns[rows].max()
    ends = np.append(starts[1:], after)
    if (ends <= starts).any():
        return None
    return starts, ends, [f"step {i}" for i in range(1, times + 1)]


def _launches_are_missing(trace: Trace) -> bool:
    """So many operations have no recorded call that only the GPU's own order is left."""
    return bool((trace.attribution.call < 0).mean() > _UNRECORDED_FRAC)


def _window(trace: Trace, process: int) -> _Found:
    start_ns, end_ns = span_of(trace, process)
    return np.array([start_ns]), np.array([end_ns]), ["window"]


def span_of(trace: Trace, process: int) -> tuple[int, int]:
    """From the first GPU operation of a process to the end of its last."""
    rows = trace.operations.process == process
    return int(trace.operations.start_ns[rows].min()), int(trace.operations.end_ns[rows].max())
