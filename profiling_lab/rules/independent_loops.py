# SPDX-License-Identifier: Apache-2.0
"""Launches of loops that call the same for one item after another, where all items could be one batch."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.rules.call_sites import in_a_row, without_wrappers
from profiling_lab.rules.independent_lines import IndependentLines
from profiling_lab.rules.launch_loops import inside, passes_of
from profiling_lab.rules.small_grids import filled
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I32, I64, unique

PASSES = 8
"""of a loop in each step, at least"""
ALL_AT_ONCE = "do it for all items at once: one batch of them, so that each kernel is launched once for all"


class IndependentLoops:
    """Of the lines around a launch the one that is passed most often. Where the host waits in each pass, the
    waits are the cause.
    """

    def __init__(self, view: View) -> None:
        self._view, self._steps = view, len(view.steps) if view.steps else 0
        self._lines, self._at_most = IndependentLines(view), passes_of(view)
        self._called_by = without_wrappers(view, of_modules=True)[view.trace.stacks.parent]
        self._functions = int(view.function_of_line.max(initial=0))
        self._passes: dict[int, int] = {}
        self._loops = np.zeros(len(view.own_row), dtype=np.int64)
        if self._steps:
            for row in unique(view.own_row[view.attribution.stack]).tolist():
                self._loops[row] = self._loop(row)

    def _loop(self, inner: int) -> int:
        """The row of the stacks of its line, 0 if this one is in none."""
        own_row, stacks, found, row = self._view.own_row, self._view.trace.stacks, 0, inner
        while row > 0 and (around := int(own_row[stacks.parent[row]])) > 0:
            loop = self._lines.of(stacks.frames[stacks.frame[around]])
            # a library that goes through its parts, such as nn.Sequential, is no call of the line itself
            if loop and self._called_by[row] == around and around not in self._passes:
                passes = self._at_most[around] if loop == "in the line" else self._runs(around)
                waits = int(inside(self._view, around, self._view.waits).sum())
                self._passes[around] = round(int(passes) / self._steps) if waits < passes else 0
            if self._passes.get(around, 0) >= max(PASSES, self._passes.get(found, 0) + 1):
                found = around
            row = around
        return found

    def _runs(self, loop: int) -> int:
        """How often the line launched something after other lines did."""
        rows = np.flatnonzero(self._view.has_call)
        rows = rows[inside(self._view, loop, self._view.attribution.call[rows])]
        return sum(1 for _ in in_a_row(self._view, rows))

    def numbered(self, rows: I64, function: I32) -> I32:
        """Per operation the number of its function or, behind all of those, of its loop."""
        loop = self._loops[self._view.own_row[self._view.attribution.stack[rows]]]
        return np.where(loop > 0, loop + self._functions, function).astype(np.int32)

    def at_once(self, number: int) -> tuple[Frame, str, Saving] | None:
        """Of a loop by this number its line, words about it, and what one batch of all passes saves:
        launches, and the time of kernels that leave SMs free. None for a function.
        """
        loop, view, stacks = number - self._functions, self._view, self._view.trace.stacks
        if loop <= 0:
            return None
        rows = np.flatnonzero(self._loops[view.own_row[view.attribution.stack]] == loop)
        passes = self._passes[loop]
        left = np.full(len(rows), 1 / passes)
        saving = Saving(rows, np.maximum(filled(view)[rows], left), left)
        words = f"; this line calls what launches them {passes:,} times a step, for one item at a time"
        return stacks.frames[stacks.frame[loop]], words, saving
