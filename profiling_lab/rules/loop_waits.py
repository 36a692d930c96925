# SPDX-License-Identifier: Apache-2.0
"""What goes with waits in a loop: a loop whose passes are done at once has neither their waits nor their
launches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.records import replace
from profiling_lab.rules.batched import FUSED, batched
from profiling_lab.rules.finding import Finding
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import unique

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
    rows = unique(np.concatenate([each.operations for each in loops] or [again[:0]]))
    at_once = batched(view, rows, FUSED, 0.0, over_waits=True)
    kept = np.isin(view.operation_place[rows], again)
    if not kept.any():
        return finding
    of_lines = Saving(rows[kept], at_once.left[kept], at_once.launches_left[kept])
    return replace(finding, saving=finding.saving | of_lines, remedy=finding.remedy + AT_ONCE)
