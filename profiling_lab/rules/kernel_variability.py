# SPDX-License-Identifier: Apache-2.0
"""Does the duration of one kernel vary a lot? Then something disturbs it, or its sizes change.

Launches of one kernel from one line are compared, forward and backward separately. Usual reasons are shapes
that change from batch to batch, a concurrent kernel, a straggler (for collectives), and falling clocks. The
cost is the time of the launches beyond their median.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import LONGER, Abstain, Finding, RuleResult, Threshold, ms
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, dense
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
    duration = view.operations.duration_ns
    place = view.operation_place[rows].astype(np.int64) + 1
    key, _ = dense(
        place << 34 | view.operations.name[rows].astype(np.int64) << 2 | view.attribution.phase[rows]
    )
    many = np.flatnonzero(np.bincount(key, minlength=1) >= view[MANY])
    if not len(many):
        return Abstain(f"no line launches a kernel {view[MANY]:.0f} times", LONGER)
    total, slowest = np.zeros(int(key.max()) + 1), np.zeros(int(key.max()) + 1)
    np.add.at(total, key, duration[rows])
    np.maximum.at(slowest, key, duration[rows])
    spread = slowest * np.bincount(key) / np.maximum(total, 1)
    wild = np.isin(key, many[spread[many] >= view[SPREAD]])
    # All collectives wait for other ranks, so they share one finding.
    talks = view.classes[rows] == OperationClass.COMMUNICATION
    beyond_of = np.zeros(len(duration), dtype=np.int64)
    findings = []
    for _, mine in grouped(rows[wild], key[wild]):
        took = duration[mine]
        median = int(np.median(took))
        beyond = np.maximum(took - median, 0)
        beyond_of[mine] = beyond
        if view.classes[mine[0]] == OperationClass.COMMUNICATION or beyond.sum() < view[SHARE] * view.gpu_ns:
            continue
        name = view.operations.short_names[view.operations.name[mine[0]]]
        findings.append(
            view.finding(
                f"{len(mine):,} launches of {name} take {ms(median)} in the median and up to "
                f"{ms(int(took.max()))}",
                cost_ns=gpu_time(view, mine, beyond),
                cost_of="GPU time beyond the median",
                place=view.place(int(view.operation_place[mine[0]])),
                rows=mine,
                weight=beyond,
                remedy=REMEDY,
                confidence="low",
            )
        )
    return [*findings, *_of_communication(view, rows[wild & talks], beyond_of)]


def _of_communication(view: View, rows: I64, beyond_of: I64) -> list[Finding]:
    beyond = beyond_of[rows]
    if not len(rows) or beyond.sum() < view[SHARE] * view.gpu_ns:
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
