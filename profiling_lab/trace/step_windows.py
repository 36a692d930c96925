# SPDX-License-Identifier: Apache-2.0
"""Find the steps of a program, with the first of six methods that works for the trace."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64, unique
from profiling_lab.trace.source import Tables
from profiling_lab.trace.spans import Window
from profiling_lab.trace.step_methods import (
    PROFILER_STEP,
    STEP_NAME,
    Found,
    graph_replays,
    launches_are_missing,
    marked_steps,
    optimizer_steps,
    repeated_steps,
    whole_window,
)


@dataclass(frozen=True, slots=True)
class StepWindows:
    """Steps in time order per process. They never overlap in one process."""

    sign: str
    """'ProfilerStep', 'range', 'replay', 'optimizer', 'period' or 'window': the method that found the
    steps
    """
    how: str
    """the same as a sentence"""
    clock: str
    """'gpu': from the first operation launched by a step to the first operation launched by the next; 'host':
    the times of the program's own ranges or calls"""
    start_ns: I64
    end_ns: I64
    host_start_ns: I64
    """the same in host time, which differs if `clock` is 'gpu'"""
    host_end_ns: I64
    process: I32
    number: I32
    """counted from 0 in each process of the whole recording, as for `--step`"""
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def are_named(self) -> bool:
        """Whether the names are those of the program's ranges. Others only count, not always from 0."""
        return self.sign in ("ProfilerStep", "range")

    def only(self, rows: npt.NDArray[np.intp]) -> StepWindows:
        """Some of the steps."""
        return replace(
            self,
            start_ns=self.start_ns[rows],
            end_ns=self.end_ns[rows],
            host_start_ns=self.host_start_ns[rows],
            host_end_ns=self.host_end_ns[rows],
            process=self.process[rows],
            number=self.number[rows],
            names=tuple(self.names[row] for row in rows.tolist()),
        )


def step_windows(trace: Tables, steps_by: str | None = None, *, whole: bool = False) -> StepWindows:
    """Find the steps of each process. In a window of a trace: the steps that are completely inside, else
    its parts.

    steps_by: a regular expression; the NVTX ranges (or annotations) whose names it matches are the steps.
    Without it, in this order: ProfilerStep ranges; ranges named like a step (`training_step`, `iteration 3`);
    replays of a CUDA graph that does most of the work; from one optimizer.step to the next; the period of the
    launches, or from one of what all steps launch once to the next; the whole window as one step.
    whole: the whole of a trace is one step, whatever the signs.

    Raises UsageError if `steps_by` is not a regular expression, NotEnoughDataError if no range matches it
    or the trace has no GPU operation.
    """
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    if trace.window is not None:
        return _within(step_windows(trace.whole, steps_by, whole=whole), trace.window)
    if steps_by is not None:
        try:
            wanted = re.compile(steps_by)
        except re.error as error:
            raise UsageError(f"--steps-by expects a regular expression, not {steps_by!r}: {error}") from None
        found = _everywhere(trace, lambda process: marked_steps(trace, process, wanted))
        if found is None:
            raise NotEnoughDataError(f"{trace.path} has no finished range that matches {steps_by!r}")
        return _on_the_gpu(trace, _windows("range", f"ranges that match {steps_by!r}", found))
    signs: tuple[tuple[str, str, Callable[[int], Found | None]], ...] = (
        ("ProfilerStep", "ProfilerStep ranges", lambda p: marked_steps(trace, p, PROFILER_STEP)),
        ("range", "ranges named like a step", lambda p: marked_steps(trace, p, STEP_NAME, at_least=2)),
        ("replay", "from one replay of a CUDA graph to the next", lambda p: graph_replays(trace, p)),
        ("optimizer", "from the end of one optimizer.step to the next", lambda p: optimizer_steps(trace, p)),
        (
            "period",
            "the period in which launches repeat (of one step alone: its layers)",
            lambda p: repeated_steps(trace, p),
        ),
    )
    for sign, how, look in () if whole else signs:
        found = _everywhere(trace, look)
        if found is not None:
            names = sorted({re.sub(r"\d+$", "", n) for _, (_, _, each) in found for n in each})
            windows = _windows(sign, f"{how} ({', '.join(names[:3])})" if sign == "range" else how, found)
            # A step with a pause of the recording in it is incomplete.
            pauses = trace.pauses.spans
            known = ~pauses.touch(windows.process, windows.host_start_ns, windows.host_end_ns)
            if not known.any():
                continue
            windows = _renumbered(windows.only(np.flatnonzero(known)))
            # ProfilerSteps follow each other without gaps.
            return windows if sign == "ProfilerStep" else _on_the_gpu(trace, windows)
    everything = _everywhere(trace, lambda p: whole_window(trace, p))
    why = "" if whole else ": the trace has no sign of steps"
    return _windows("window", f"the whole window as one step{why}", everything or [])


def _within(steps: StepWindows, window: Window) -> StepWindows:
    """Only whole steps within a window, because partial steps cannot be compared with whole ones."""
    spans = window.gpu if steps.clock == "gpu" else window.host
    whole = np.flatnonzero(spans.hold(steps.process, steps.start_ns, steps.end_ns))
    if len(whole) and steps.sign != "window":
        return steps.only(whole)
    spans = window.gpu
    names = tuple("window" if len(spans) == 1 else f"window #{i}" for i in range(1, len(spans) + 1))
    parts = "the window as one step" if len(spans) == 1 else f"the {len(spans)} parts of the window"
    how = f"{parts}: no whole step is inside (steps by {steps.sign})"
    times = (spans.start_ns, spans.end_ns)
    number = np.arange(len(spans), dtype=np.int32)
    return StepWindows("window", how, "gpu", *times, *times, spans.process, number, names)


def _everywhere(trace: Tables, look: Callable[[int], Found | None]) -> list[tuple[int, Found]] | None:
    """The result of `look` for each process that used a GPU; None if there is none."""
    found = [(p, look(p)) for p in unique(trace.operations.process).tolist()]
    return [(p, f) for p, f in found if f is not None] or None


def _windows(sign: str, how: str, found: list[tuple[int, Found]]) -> StepWindows:
    times = (np.concatenate([f[0] for _, f in found]), np.concatenate([f[1] for _, f in found]))
    return StepWindows(
        sign,
        how,
        "host",
        *times,
        *times,
        np.concatenate([np.full(len(f[0]), p, dtype=np.int32) for p, f in found]),
        np.concatenate([np.arange(len(f[0]), dtype=np.int32) for _, f in found]),
        tuple(name for _, f in found for name in _told_apart(f[2])),
    )


def _renumbered(steps: StepWindows) -> StepWindows:
    number = steps.number.copy()
    for process in unique(steps.process).tolist():
        mine = steps.process == process
        number[mine] = np.arange(int(mine.sum()), dtype=np.int32)
    return replace(steps, number=number)


def _told_apart(names: list[str]) -> list[str]:
    """Number ranges with equal names."""
    if len(set(names)) == len(names):
        return names
    return [f"{name} #{i}" for i, name in enumerate(names, 1)]


def _on_the_gpu(trace: Tables, steps: StepWindows) -> StepWindows:
    """The same steps in GPU time, by their launched operations: the host may be far ahead of the GPU.

    A step lasts until the next one begins on the GPU. If other work was launched in between, or the recording
    paused, it ends with its own last operation. Steps stay in host time if one of them has no recorded
    operation, or if steps overlap on the GPU.
    """
    if steps.sign == "period" and launches_are_missing(trace):
        return replace(steps, clock="gpu")  # it was found in GPU time
    start_ns, end_ns = steps.start_ns.copy(), steps.end_ns.copy()
    for process in unique(steps.process).tolist():
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
    trace: Tables, process: int, start_ns: I64, end_ns: I64
) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """Map disjoint host intervals of a process to GPU time: from the start of the first operation launched in
    each to the end of the last, and whether other operations were launched before the next interval.

    An interval without launches begins at int64's maximum and ends at its minimum.
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
