# SPDX-License-Identifier: Apache-2.0
"""The methods to find the steps of one process, in host time unless stated otherwise."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.columns import FARTHEST_NS, I32, I64, dense, unique
from profiling_lab.trace.cuda_calls import CudaCall, cuda_calls
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.source import Tables

PROFILER_STEP = re.compile(r"^ProfilerStep#\d+$")
STEP_NAME = re.compile(
    r"(?i)^((train|training|inference|model|global)?[ _]?(step|iteration|iter|batch))[ _#:]*\d*$"
)
_OPTIMIZER_RANGE = re.compile(r"^Optimizer\.step#")
_OPTIMIZER_FILES = "/torch/optim/"
# The least share of all launches that a repeating sequence must cover to count as steps.
_LINES_KNOWN_FRAC = 0.9
_PERIOD_COVERS_FRAC = 0.5
# Steps that differ have about as many launches, and there are enough of them to say so.
_LANDMARKS_COVER_FRAC = 0.8
_MOST_APART = 2
_ENOUGH_REPEATS = 5
# The largest share of launches without a recorded call for which calls still give the order.
_UNRECORDED_FRAC = 0.01

# Graphs of a part of the model are replayed together with other work: their replays are not steps.
_REPLAYS_COVER_FRAC = 0.5
_ENOUGH_REPLAYS = 5

Found = tuple[I64, I64, list[str]]
"""starts, ends, names"""


def marked_steps(trace: Tables, process: int, name: re.Pattern[str], at_least: int = 1) -> Found | None:
    """The outermost matching ranges of the thread with most of them."""
    ranges = trace.ranges
    matches = np.array([bool(name.search(text)) for text in ranges.names] or [False], dtype=bool)
    whole = (ranges.start_ns > -FARTHEST_NS) & (ranges.end_ns < FARTHEST_NS)
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


def optimizer_steps(trace: Tables, process: int) -> Found | None:
    """Steps between the ends of successive optimizer.step calls; before the first end there is no whole
    step.
    """
    if (marked := marked_steps(trace, process, _OPTIMIZER_RANGE)) is not None:
        return _between(trace, marked[1])
    stacks, calls = trace.stacks, trace.calls
    files = tuple({frame.file for frame in stacks.frames if _OPTIMIZER_FILES in frame.file})
    if not files:
        return None
    rows = _launches(trace, process)
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    inside = stacks.passes_through(files, ("step",))[calls.stack[rows]] > 0
    last = np.flatnonzero(inside & ~np.append(inside[1:], False))
    return _between(trace, calls.end_ns[rows[last]]) if len(last) else None


def graph_replays(trace: Tables, process: int) -> Found | None:
    """Replays from one line of the program, if they do most of the GPU work."""
    operations, calls, found = trace.operations, trace.calls, trace.attribution
    mine = np.flatnonzero((operations.process == process) & (found.call >= 0))
    call = found.call[mine]
    replays = mine[(cuda_calls(calls) == CudaCall.GRAPH_LAUNCH)[call]]
    duration_ns = operations.duration_ns
    if not len(replays) or duration_ns[replays].sum() < _REPLAYS_COVER_FRAC * duration_ns[mine].sum():
        return None
    stack = calls.stack[found.call[replays]]
    longest = np.bincount(stack, weights=duration_ns[replays]).argmax()
    starts = unique(calls.start_ns[found.call[replays[stack == longest]]])
    if len(starts) < _ENOUGH_REPLAYS:
        return None
    ends = np.append(starts[1:], max(int(operations.end_ns[mine].max()), int(starts[-1]) + 1))
    return starts, ends, [f"replay {i}" for i in range(1, len(starts) + 1)]


def _between(trace: Tables, ends_ns: I64) -> Found | None:
    """Steps from one end to the next. A recorded window that begins with a step also begins one."""
    ends_ns = np.union1d(ends_ns, trace.pauses.step_starts_ns)
    if len(ends_ns) < 2:
        return None
    return ends_ns[:-1], ends_ns[1:], [f"step {i}" for i in range(2, len(ends_ns) + 1)]


def _launches(trace: Tables, process: int) -> npt.NDArray[np.intp]:
    """Rows of the calls of a process that launched a GPU operation."""
    call = trace.attribution.call[trace.operations.process == process]
    return unique(call[call >= 0]).astype(np.intp)


def repeated_steps(trace: Tables, process: int) -> Found | None:
    """Repetitions of the sequence of (kernel, line), or of lines: sizes that grow need other kernels, and
    sizes that take turns are one repetition together, but a step each. Where steps differ, as if branches are
    taken at random, from one of what all of them launch once to the next. A step of several loops, as a
    prompt that is read word by word before the answer, has nothing that comes once but the turn from one line
    to another.
    """
    operations, found = trace.operations, trace.attribution
    rows = np.flatnonzero(operations.process == process)
    launched = found.call[rows] >= 0
    if launches_are_missing(trace):
        time_ns = operations.start_ns[rows]
    else:
        rows = rows[launched]
        time_ns = trace.calls.start_ns[found.call[rows]]
    order = np.argsort(time_ns, kind="stable")
    rows, time_ns = rows[order], time_ns[order]
    own = trace.stacks.own_rows(Ownership())[found.stack[rows]]
    symbols, _ = dense(operations.name[rows].astype(np.int64) << 32 | own)
    last_ns = int(operations.end_ns[rows].max(initial=0))
    steps = _repetitions(symbols, time_ns, last_ns)
    if (own > 0).mean() < _LINES_KNOWN_FRAC:
        return steps or _landmarks(symbols, time_ns)
    turns = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    line, began_ns = own[turns].astype(np.int64), time_ns[turns]
    by_line = _repetitions(dense(line)[0], began_ns, last_ns)
    if steps:
        return by_line if by_line and _take_turns(time_ns, steps, by_line) else steps
    turn = dense(line[:-1] << 32 | line[1:])[0]
    steps = by_line or _landmarks(symbols, time_ns) or _landmarks(turn, began_ns[1:])
    return steps or _landmarks(symbols, time_ns, growing=True)


def _take_turns(time_ns: I64, steps: Found, by_line: Found) -> bool:
    """Whether each of these steps is the same number of steps by line, with about as many launches."""
    number = np.searchsorted(by_line[0], steps[0], "right")
    each = unique(np.diff(number))
    launches = np.searchsorted(time_ns, by_line[1]) - np.searchsorted(time_ns, by_line[0])
    return len(each) == 1 and each[0] > 1 and launches.max() <= _MOST_APART * launches.min()


def _landmarks(symbols: I32, time_ns: I64, growing: bool = False) -> Found | None:
    """Between occurrences of the rarest symbol that comes again and again, after about as many others; or
    after more of them each time, where what was added in each step is never removed.
    """
    order = np.argsort(symbols, kind="stable")
    for at in sorted(np.split(order, np.flatnonzero(np.diff(symbols[order])) + 1), key=len):
        if len(at) <= _ENOUGH_REPEATS or at[-1] - at[0] < _LANDMARKS_COVER_FRAC * len(symbols):
            continue
        apart, times = np.diff(at), time_ns[at]
        before, after = (apart[:-1], apart[1:]) if growing else (apart.min(), apart.max())
        regular = np.all(before <= after) and np.all(after <= _MOST_APART * before)
        if regular and apart.min() > 1 and (np.diff(times) > 0).all():
            return times[:-1], times[1:], [f"step {i}" for i in range(1, len(at))]
    return None


def _repetitions(symbols: I32, time_ns: I64, last_ns: int) -> Found | None:
    first, length, times = _analysis.period_of(symbols)
    if length * times < _PERIOD_COVERS_FRAC * len(symbols) or not length:
        return None
    at = first + length * np.arange(times + 1)
    starts = time_ns[at[:-1]]
    # A last repetition that ends with the trace ends with its last operation.
    after = time_ns[at[-1]] if at[-1] < len(symbols) else last_ns
    ends = np.append(starts[1:], after)
    if (ends <= starts).any():
        return None
    return starts, ends, [f"step {i}" for i in range(1, times + 1)]


def launches_are_missing(trace: Tables) -> bool:
    """Whether too many operations have no recorded call, so that only the order on the GPU is usable."""
    return bool((trace.attribution.call < 0).mean() > _UNRECORDED_FRAC)


def whole_window(trace: Tables, process: int) -> Found:
    start_ns, end_ns = span_of(trace, process)
    return np.array([start_ns]), np.array([end_ns]), ["window"]


def span_of(trace: Tables, process: int) -> tuple[int, int]:
    """From the first GPU operation of a process to the end of its last."""
    rows = trace.operations.process == process
    return int(trace.operations.start_ns[rows].min()), int(trace.operations.end_ns[rows].max())
