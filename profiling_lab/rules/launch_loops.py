# SPDX-License-Identifier: Apache-2.0
"""Where a function's many launches come from, and how many of them a fused kernel could replace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from profiling_lab.rules.callers import waiting_loops
from profiling_lab.rules.launch_queue import waits_between
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.stacks import Frame


def by_function(view: View, rows: I64, many: float) -> tuple[I32, Mapping[int, int]]:
    """Per operation the number of its function, and of the functions that wait again and again the line of
    the loop: what that calls belongs to it.
    """
    function, loops = view.function_of_line[view.operation_place[rows]], waiting_loops(view, rows, many)
    for called, line in loops.items():
        function[function == called] = view.function_of_line[line]
    return function, loops


def hottest(view: View, rows: I64, weight_ns: I64, idle_by_line: I64) -> Frame | None:
    """The line of most time, a line's idle time shared by its operations."""
    line = view.operation_place[rows]
    idle_ns = np.append(idle_by_line, 0)[line] // np.bincount(line + 1)[line + 1]
    return view.hottest_line(rows, weight_ns + idle_ns)


def cut_by_waits(view: View, launches: I64, loop: int | None, few: float) -> tuple[Frame | None, str, float]:
    """Where the host waits after every few launches, or the loop: its line, and words about it. And the part
    of the launches that is left when those between two waits are one.
    """
    cutting, pieces = waits_between(view, launches)
    left = pieces / max(len(launches), 1)
    if loop is None and len(launches) >= few * pieces:
        return None, "", left
    words = f"; the host waits after every {len(launches) / pieces:.1f} of them, mostly at this line"
    return view.place(cutting if loop is None else loop), words, left
