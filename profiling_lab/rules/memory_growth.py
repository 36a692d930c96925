# SPDX-License-Identifier: Apache-2.0
"""Does GPU memory grow from step to step? Then it runs out at last, however many steps that takes.

The rule compares what each line holds at the ends of the steps. A line that holds more after nearly every
step makes something that is kept: activations in a list, or a loss that is logged as a tensor, which keeps
its graph. Memory itself costs no time. The first step is left out, because it makes what stays. The rule
looks at the whole recording, and needs `record --memory`.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.growth import GrowthRow, ends_of_steps, growth_rows
from profiling_lab.rules.finding import LONGER, Abstain, Finding, RuleResult, Threshold
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View

ENOUGH = Threshold("enough", "ends of steps", 4, "at least", "ours: fewer show no trend")
GREW = Threshold("grew", "steps in which a line grew", 0.8, "of all, at least", "ours")
LEAST = Threshold(
    "least", "growth of a step", 512, "bytes, at least", "the smallest block of torch's allocator"
)
SMALL_BYTES = 4096
"""a loss or a metric, not an activation"""
WARM_UP = 1
KEPT = (
    "detach what is kept, move it to the host, or keep only a sum; look for a list, a dict or an attribute "
    "that gets a tensor in each step"
)
LOGGED = "log loss.item(), or loss.detach() where a wait in each step costs too much"


def check(view: View) -> RuleResult:
    if isinstance(view.memories, Abstain):
        return view.memories
    findings: list[Finding] = []
    most = 0
    for each in view.memories:
        ends = ends_of_steps(each, view.whole_steps)[WARM_UP:]
        most = max(most, len(ends))
        if len(ends) < view[ENOUGH]:
            continue
        rows = growth_rows(each, ends)
        findings += [_finding(view, row, ends) for row in rows if _leaks(view, row, len(ends))]
    if most < view[ENOUGH]:
        return Abstain(f"{most} ends of steps with a history of memory are too few to see growth", LONGER)
    return findings


def _leaks(view: View, row: GrowthRow, steps: int) -> bool:
    return row.per_step_bytes >= view[LEAST] and row.steps_grown >= view[GREW] * (steps - 1)


def _finding(view: View, row: GrowthRow, ends: np.ndarray) -> Finding:
    is_small = row.per_step_bytes <= SMALL_BYTES
    what = "a small tensor, such as a loss, is kept" if is_small else "what it makes is kept"
    line = "this line" if row.place.frame else f"memory without a line ({row.place.reason})"
    return view.finding(
        f"{line} holds {row.per_step_bytes:,} bytes more after each step, in {row.steps_grown} of "
        f"{len(ends) - 1} steps: {what}",
        cost_ns=0,
        cost_of="memory, not time",
        place=row.place.frame,
        rows=view.near(int(ends[-1])),
        weight=np.ones(1, dtype=np.int64),
        remedy=LOGGED if is_small else KEPT,
        cause="logged_tensor" if is_small else "kept_tensors",
    )


RULE = Rule(
    "memory_growth",
    "Does GPU memory grow from step to step?",
    (ENOUGH, GREW, LEAST),
    check,
    __doc__ or "",
    severity_at_least="medium",
)
