# SPDX-License-Identifier: Apache-2.0
"""Does each step of a training compute what is only looked at?

A call that is a statement returns nothing that the step goes on with: `callback.on_step_end(loss)`. If
nothing is trained through it either, it is there to show something, such as a preview, a metric or a
histogram, or to change something, such as a mean of weights or a buffer. What only changes tensors is
elementwise and copies; what is shown is a model's output or a sum. So such a call is found if it comes in
nearly each step, and multiplications of matrices, convolutions and reductions are a good part of it; with
what hooks do in the same function. It may collect what the training needs: the severity is at most medium.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving, fewer
from profiling_lab.rules.call_sites import CallSite, call_sites, in_steps
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import STACKS, Abstain, Finding, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import CONVOLUTION, MATRIX
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.operation_classes import OperationClass
from profiling_lab.trace.phases import LinePhase

SHARE = Threshold(
    "share", "such calls at one line take", 0.05, "of the GPU time, at least", "ours: as medium"
)
OFTEN = Threshold(
    "often", "steps with such a call", 0.9, "of all, at least", "ours: some begin the recording"
)
SHOWN = Threshold("shown", "multiplications and reductions take", 0.25, "of such a call, at least", "ours")
SUMS = r"reduce|histogram|histc|softmax|norm_kernel|std_var|topk|sort|kthvalue"
REMEDY = "do it every n-th step, or never: nothing goes on with what this call returns"


def check(view: View) -> RuleResult:
    trains = (view.attribution.phase == Phase.BACKWARD).any()
    if not trains or view.steps is None or not view.trace.source_texts:
        return Abstain("the trace has no backward, no steps, or no text of the lines", STACKS)
    least_ns, duration = view[SHARE] * view.gpu_ns, view.operations.duration_ns
    taken, findings = np.zeros(len(view.operations), dtype=bool), []
    sites = [site for site in call_sites(view, least_ns / 10) if site.is_statement or site.of_a_lambda]
    sites.sort(key=lambda site: -len(site.rows))
    for site in sites:
        rows = unique(np.concatenate([each.rows for each in sites if each.same_function(site)]))
        if not site.is_statement or taken[rows].any() or duration[rows].sum() < least_ns:
            continue
        if _is_shown(view, rows) and in_steps(view, view.steps, rows, view[OFTEN]):
            taken[rows] = True
            findings.append(_finding(view, site, rows))
    return findings


def _finding(view: View, site: CallSite, rows: I64) -> Finding:
    duration, call = view.operations.duration_ns[rows], view.attribution.call[rows]
    waits, total_ns = view.waits_at_once(call[call >= 0]), int(duration.sum())
    return view.finding(
        f"nothing is done with what {site.callee.function} returns here, and nothing trained through it: "
        f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, in nearly each step",
        cost_ns=gpu_time(view, rows),
        cost_of="GPU time of these calls",
        place=site.caller,
        rows=rows,
        weight=duration,
        remedy=REMEDY,
        confidence="low",
        saving=fewer(rows) | Saving(calls=unique(waits[waits >= 0])),
    )


def _is_shown(view: View, rows: I64) -> bool:
    """What a hook launches in backward is not the backward of anything."""
    found, duration = view.attribution, view.operations.duration_ns[rows]
    hook = np.append(view.trace.stacks.in_hook()[view.calls.stack], False)[found.call[rows]]
    other = ((found.phase[rows] != Phase.FORWARD) & ~hook) | (found.line_phase[rows] == LinePhase.OPTIMIZER)
    other |= view.classes[rows] == OperationClass.HOST_TO_DEVICE
    shown = view.kernels_named(MATRIX) | view.kernels_named(CONVOLUTION) | view.kernels_named(SUMS)
    return not other.any() and bool(duration[shown[rows]].sum() >= view[SHOWN] * duration.sum())


RULE = Rule(
    "unused_results",
    "Does each step of a training compute what is only looked at?",
    (SHARE, OFTEN, SHOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
