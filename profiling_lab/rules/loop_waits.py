# SPDX-License-Identifier: Apache-2.0
"""What goes with waits in a loop: a loop whose passes are done at once has neither their waits nor their
launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.records import replace
from profiling_lab.rules.finding import Finding
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

MANY = 8
"""waits at one line in each step are those of a loop"""
AT_ONCE = "; or do what the loop does for one at a time for all at once: this saves its launches, too"


def with_launches(view: View, finding: Finding, loops: Sequence[Saving]) -> Finding:
    """A finding about waits at lines that wait again and again in each step, and what `loops` would save of
    the launches at these lines.
    """
    if finding.saving is None or view.steps is None:
        return finding
    line = view.wait_place(finding.saving.calls)
    again = np.flatnonzero(np.bincount(line[line >= 0], minlength=1) >= MANY * len(view.steps))
    parts = [part for each in loops if len((part := _at_lines(view, each, again)).operations)]
    if not parts:
        return finding
    return replace(finding, saving=reduce(or_, parts, finding.saving), remedy=finding.remedy + AT_ONCE)


def _at_lines(view: View, saving: Saving, lines: I64) -> Saving:
    kept = np.isin(view.operation_place[saving.operations], lines)
    return Saving(saving.operations[kept], saving.left[kept], saving.launches_left[kept])
