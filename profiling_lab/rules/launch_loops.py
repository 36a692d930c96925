# SPDX-License-Identifier: Apache-2.0
"""Where a function's many launches come from, and how many of them a fused kernel could replace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from profiling_lab.records import replace
from profiling_lab.rules.callers import waiting_loops
from profiling_lab.rules.finding import Finding, ms
from profiling_lab.rules.kernel_families import RECURRENT
from profiling_lab.rules.launch_queue import waits_between
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I32, I64, unique
from profiling_lab.trace.stacks import Frame

OF_OPTIMIZER = (
    "update all parameters at once: fused=True or foreach=True, torch._foreach_* in one of your own"
)
OF_RECURRENT = (
    "give the recurrent layer more sequences at once, or replay it as a CUDA graph: these are cuDNN's own"
)


def by_function(view: View, rows: I64, many: float) -> tuple[I32, Mapping[int, int]]:
    """Per operation the number of its function, and by the number of those that wait again and again the line
    of the loop: what that calls belongs to its function.
    """
    function, loops = view.function_of_line[view.operation_place[rows]], waiting_loops(view, rows, many)
    for called, line in loops.items():
        function[function == called] = view.function_of_line[line]
    return function, {int(view.function_of_line[line]): line for line in loops.values()}


def function_of(view: View, place: Frame | None) -> int:
    """The number of a line's function, -1 none."""
    line = next((line for line in range(view.lines) if view.place(line) == place), -1)
    return int(view.function_of_line[line])


def kernels_at(view: View, rows: I64, of_loop: bool) -> str:
    """Words about these kernels."""
    duration = view.operations.duration_ns[rows]
    functions = "a loop and what it calls" if of_loop else "one function"
    lines = len(unique(view.operation_place[rows]))
    at = f" at {lines} lines of {functions}" if lines > 1 else ""
    backward = ", forward and backward" if (view.attribution.phase[rows] == Phase.BACKWARD).any() else ""
    average = f"{duration.mean() / 1000:.1f} µs on average"
    return f"{len(rows):,} kernels of {average}{at}{backward}: {ms(int(duration.sum()))} on the GPU"


def hottest(view: View, rows: I64, weight_ns: I64, idle_by_line: I64) -> Frame | None:
    """The line of most time, a line's idle time shared by its operations."""
    line = view.operation_place[rows]
    idle_ns = np.append(idle_by_line, 0)[line] // np.bincount(line + 1)[line + 1]
    return view.hottest_line(rows, weight_ns + idle_ns)


def around(
    view: View, launches: I64, loop: int | None, few: float, many: float
) -> tuple[Frame | None, str, float]:
    """Where the host waits after every few launches, or the loop: its line, and words about it. And the part
    of the launches that is left when those between two waits are one; of a loop none has to be.
    """
    cutting, pieces = waits_between(view, launches)
    left = pieces / max(len(launches), 1)
    if loop is None and len(launches) >= few * pieces:
        return *outer_loop(view, launches, many), left
    words = f"; the host waits after every {len(launches) / pieces:.1f} of them, mostly at this line"
    return (view.place(cutting), words, left) if loop is None else (view.place(loop), words, 0.0)


def of_library(view: View, rows: I64, finding: Finding) -> Finding:
    """cuDNN launches a recurrent layer's kernels itself: a healthy program has as many, and nothing else can
    fuse them.
    """
    place = view.operation_place
    lines = place[view.kernels_named(RECURRENT) & (place >= 0)]
    if 2 * np.isin(place[rows], lines).sum() < len(rows):
        return finding
    return replace(finding, remedy=OF_RECURRENT, severity_at_most="medium")


def outer_loop(view: View, launches: I64, many: float) -> tuple[Frame | None, str]:
    """The line that calls what launches most of these again and again in each step, with a loop inside of
    that call; and words about it. Not known without steps: they are loops, too.
    """
    if view.steps is None or not len(launches):
        return None, ""
    stacks, steps = view.trace.stacks, len(view.steps)
    own_row, passes = view.own_row, passes_of(view)
    row = inner = int(np.bincount(own_row[view.calls.stack[launches]]).argmax())
    found = None
    while (row := int(own_row[stacks.parent[row]])) > 0:
        if many * steps <= passes[row] < passes[inner] and (found is None or passes[row] < passes[found]):
            found = row
    if found is None or 2 * inside(view, found, launches).sum() < len(launches):
        return None, ""
    line = int(view.place_of_stack(np.array([found], dtype=np.int32))[0])
    return view.place(line), f"; this line calls what launches them {passes[found] / steps:,.0f} times a step"


def inside(view: View, row: int, calls: npt.NDArray[np.integer]) -> Mask:
    """Per call, whether it was made by the line of this row of the stacks, or within what that called."""
    own_row, parent = view.own_row, view.trace.stacks.parent
    at = own_row[view.calls.stack[calls]]
    while len(others := np.flatnonzero((at > 0) & (at != row))):
        at[others] = own_row[parent[at[others]]]
    return np.asarray(at == row)


def passes_of(view: View) -> I64:
    """Per row of the stacks how often its line was passed, at most: as often as what came least often in it.
    A line came as often as the kernel that it launched most often.
    """
    stacks, rows = view.trace.stacks, np.flatnonzero(view.kernels & view.has_call)
    own_row = view.own_row
    inside = own_row[view.calls.stack[view.attribution.call[rows]]].astype(np.int64)
    symbol, count = np.unique(inside << 32 | view.operations.name[rows], return_counts=True)
    often, least = np.zeros(len(own_row), dtype=np.int64), np.full(len(own_row), len(rows) + 1)
    np.maximum.at(often, symbol >> 32, count)
    row: I64 = np.flatnonzero(often)
    times = often[row]
    while len(row):
        np.minimum.at(least, row, times)
        row = own_row[stacks.parent[row]].astype(np.int64)
        row, times = row[row > 0], times[row > 0]
    return least
