# SPDX-License-Identifier: Apache-2.0
"""Does one line of Python take most of the GPU time? Only this view shows many short kernels of one line.

A line is charged for the operations that it launches in forward and for their backward. Its cost is their
time without matrix multiplications and attention on tensor cores: another way to write the line does not save
those. Of the rest it saves half to nearly all where there is a better way. If most of the GPU time has no
line, the rule abstains.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import LONGER, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import FUSED_ATTENTION, MATRIX, NO_TENSOR_CORES, TENSOR_CORES
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase

SHARE = Threshold("share", "one line takes", 0.3, "of the GPU time, at least", "nsys-ai, for kernels")
HOT = Threshold("hot", "called a hot spot", 0.6, "of the GPU time, from", "nsys-ai: hot spot")
ENOUGH = Threshold("enough", "operations needed to compare shares", 20, "at least", "ours")
REMEDY = "look at this line first: `profiling-lab kernels` shows its kernels"


def check(view: View) -> RuleResult:
    operations = view.operations
    if len(operations) < view[ENOUGH]:
        return Abstain(f"{len(operations)} operations are too few to compare shares", LONGER)
    time_ns = view.time_by_line()
    rows = np.flatnonzero(np.isin(view.operation_place, np.flatnonzero(time_ns >= view[SHARE] * view.gpu_ns)))
    on_tensor_cores = view.kernels_named(MATRIX) & view.kernels_named(TENSOR_CORES)
    on_tensor_cores = (on_tensor_cores & ~view.kernels_named(NO_TENSOR_CORES)) | view.kernels_named(
        FUSED_ATTENTION
    )
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        duration = operations.duration_ns[mine]
        total_ns = int(duration.sum())
        share = total_ns / view.gpu_ns
        backward_ns = int(duration[view.attribution.phase[mine] == Phase.BACKWARD].sum())
        findings.append(
            view.finding(
                what=f"one line takes {percent(share)} of the GPU time"
                f"{', a hot spot' if share >= view[HOT] else ''}: {len(mine):,} operations, "
                f"{ms(total_ns - backward_ns)} forward, {ms(backward_ns)} backward",
                cost_ns=gpu_time(view, mine[~on_tensor_cores[mine]]),
                cost_of="GPU time of the line, without products on tensor cores",
                place=view.place(number),
                rows=mine,
                weight=duration,
                remedy=REMEDY,
                saving=fewer(mine[~on_tensor_cores[mine]]),
            )
        )
    return findings or view.too_few_lines("that no line dominates") or ()


RULE = Rule(
    "dominant_line",
    "Does one line of Python dominate the GPU's time?",
    (SHARE, HOT, ENOUGH),
    check,
    __doc__ or "",
    time=Time.BUSY,
    symptom=True,
    wins_frac=0.65,
)
