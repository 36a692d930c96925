# SPDX-License-Identifier: Apache-2.0
"""Are single steps much slower than the others? Averages hide them, and all ranks wait for them.

The rule compares the wall time of each step of one process with the median. Usual reasons are warm-up,
checkpoints, validation and garbage collection. The finding says which part of the slow steps grew: compute,
communication, copies or idle time. The cost is the time of these steps beyond the median.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.steps import PARTS, part_times
from profiling_lab.rules.finding import LONGER, Abstain, RuleResult, Threshold, ms
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, median

SLOW = Threshold("slow", "a step takes", 1.5, "times the median, more than", "nsys-ai: iteration spike")
ENOUGH = Threshold("enough", "steps needed for a median", 5, "at least", "ours")
REMEDY = "`profiling-lab steps` lists all steps; look at a single one with `--step N`"


def check(view: View) -> RuleResult:
    steps = view.steps
    if steps is None or len(steps) < view[ENOUGH]:
        found = f"{len(steps)} steps are too few for a median" if steps else "no steps were found"
        return Abstain(found, LONGER)
    findings = []
    for number, (process, device, rows) in enumerate(view.devices):
        mine = np.flatnonzero(steps.process == process)
        # A step that begins before the first operation counts from that operation on.
        recorded = view.operations.start_ns.min(), view.operations.end_ns.max()
        starts, ends = steps.start_ns[mine].clip(*recorded), steps.end_ns[mine].clip(*recorded)
        if len(mine) < view[ENOUGH]:
            continue
        wall_ns = ends - starts
        usual_ns = int(median(wall_ns))
        slow = np.flatnonzero(wall_ns > view[SLOW] * usual_ns)
        if not len(slow):
            continue
        parts = part_times(view.trace, starts, ends, np.full(len(mine), number, dtype=np.int32))
        grew = PARTS[int((parts[slow] - np.median(parts, axis=0)).sum(axis=0).argmax())]
        beyond: I64 = wall_ns[slow] - usual_ns
        order = rows[np.argsort(view.operations.start_ns[rows], kind="stable")]
        first = np.searchsorted(view.operations.start_ns[order], starts[slow], "left")
        named = ", ".join([*(steps.names[mine[i]] for i in slow[:3].tolist()), *["..."][: len(slow) > 3]])
        findings.append(
            view.finding(
                f"{len(slow)} of {len(mine)} steps ({named}) take more than "
                f"{view[SLOW]:g} times the median of {ms(usual_ns)}, up to {ms(int(wall_ns.max()))}, on "
                f"device {device}{view.of_process(process)}; most of it is {grew}",
                cost_ns=int(beyond.sum()),
                cost_of="time of the slow steps beyond the median",
                place=None,
                rows=order[np.minimum(first, len(order) - 1)],
                weight=beyond,
                remedy=REMEDY,
            )
        )
    return findings


RULE = Rule(
    "slow_steps",
    "Are single steps much slower than the others?",
    (SLOW, ENOUGH),
    check,
    __doc__ or "",
    time=Time.IDLE,
    symptom=True,
    wins_frac=0.5,
)
