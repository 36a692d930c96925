# SPDX-License-Identifier: Apache-2.0
"""Does the duration of one kernel vary a lot? Then something disturbs it, or its sizes change.

Launches of one kernel from one line are compared, forward and backward separately. Usual reasons are shapes
that change from batch to batch, a concurrent kernel, a straggler (for collectives), and falling clocks. The
cost is the time of the launches beyond their median.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.kernels.variability import VaryingLaunches, varying_launches
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import LONGER, Abstain, Finding, RuleResult, Threshold, ms
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.operation_classes import OperationClass

SPREAD = Threshold("spread", "the slowest takes", 5, "times the mean, from", "nsys-ai: variability")
MANY = Threshold("many", "launches of one kernel at one line", 20, "at least", "nsys-ai")
SHARE = Threshold("share", "time beyond the median", 0.01, "of the GPU time, from", "ours: 10 ms per second")
OF_COMMUNICATION = (
    "a collective waits for the last rank: `profiling-lab ranks` over the traces of all ranks "
    "shows which rank is late, and at which line"
)
REMEDY = (
    "pad or bucket the shapes; check what overlapped with the slowest launches (`overlap`), and the clocks"
)


def check(view: View) -> RuleResult:
    rows = np.flatnonzero(view.kernels)
    varying = varying_launches(view.trace, rows, view.operation_place, view[MANY], view[SPREAD])
    if varying is None:
        return Abstain(f"no line launches a kernel {view[MANY]:.0f} times", LONGER)
    findings, of_communication = [], []
    for launches in varying:
        mine, beyond = launches.rows, launches.beyond_ns
        if view.classes[mine[0]] == OperationClass.COMMUNICATION:
            of_communication.append(launches)  # all of them wait for other ranks: one finding
            continue
        if beyond.sum() < view[SHARE] * view.gpu_ns:
            continue
        name = view.operations.short_names[view.operations.name[mine[0]]]
        findings.append(
            view.finding(
                f"{len(mine):,} launches of {name} take {ms(launches.median_ns)} in the median and up to "
                f"{ms(int(view.operations.duration_ns[mine].max()))}",
                cost_ns=gpu_time(view, mine, beyond),
                cost_of="GPU time beyond the median",
                place=view.place(int(view.operation_place[mine[0]])),
                rows=mine,
                weight=beyond,
                remedy=REMEDY,
                confidence="low",
            )
        )
    return [*findings, *_of_communication(view, of_communication)]


def _of_communication(view: View, varying: list[VaryingLaunches]) -> list[Finding]:
    if not varying:
        return []
    rows, beyond = (np.concatenate(c) for c in zip(*((v.rows, v.beyond_ns) for v in varying), strict=True))
    if beyond.sum() < view[SHARE] * view.gpu_ns:
        return []
    took = view.operations.duration_ns[rows]
    return [
        view.finding(
            f"{len(rows):,} communication kernels vary a lot in duration: {ms(int(beyond.sum()))} of "
            f"{ms(int(took.sum()))} is beyond the medians, and one takes {ms(int(took.max()))}",
            cost_ns=gpu_time(view, rows, beyond),
            cost_of="GPU time beyond the median",
            place=view.hottest_line(rows, beyond),
            rows=rows,
            weight=beyond,
            remedy=OF_COMMUNICATION,
            confidence="low",
        )
    ]


RULE = Rule(
    "kernel_variability",
    "Does the duration of one kernel vary a lot?",
    (SPREAD, MANY, SHARE),
    check,
    __doc__ or "",
    time=Time.BUSY,
    symptom=True,
    wins_frac=0.3,
)
