# SPDX-License-Identifier: Apache-2.0
"""Does each step of a training compute what is only looked at?

A call that is a statement returns nothing that the step goes on with: `callback.on_step_end(loss)`. If
nothing is trained through it either, it is there to show something, such as a preview, a metric or a
histogram, or to change something, such as a mean of weights or a buffer. What only changes tensors is
elementwise and copies; what is shown is a model's output or a sum. So such a call is found if it comes in
nearly each step, and multiplications of matrices, convolutions and reductions are a good part of it. It may
still collect what the training needs, so the severity is at most medium. Optimizers, and what they call, are
left out.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving, fewer
from profiling_lab.rules.call_sites import CallSite, call_sites
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
    if len(view.trace.stacks) == 1:
        return Abstain("the trace has no Python stacks", STACKS)
    if not (view.attribution.phase == Phase.BACKWARD).any() or view.steps is None:
        return Abstain("the trace has no backward or no steps, so it may not be a training", STACKS)
    sites = [site for site in call_sites(view, view[SHARE] * view.gpu_ns) if site.is_statement]
    sites.sort(key=lambda site: -len(site.rows))
    taken, findings = np.zeros(len(view.operations), dtype=bool), []
    for site in sites:
        if not taken[site.rows].any() and _is_shown(view, site.rows) and _in_each_step(view, site.rows):
            taken[site.rows] = True
            findings.append(_finding(view, site))
    return findings


def _finding(view: View, site: CallSite) -> Finding:
    duration, call = view.operations.duration_ns[site.rows], view.attribution.call[site.rows]
    waits = view.waits_at_once(call[call >= 0])
    total_ns = int(duration.sum())
    return view.finding(
        f"nothing is done with what {site.callee.function} returns here, and nothing trained through it: "
        f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, in nearly each step",
        cost_ns=gpu_time(view, site.rows),
        cost_of="GPU time of these calls",
        place=site.caller,
        rows=site.rows,
        weight=duration,
        remedy=REMEDY,
        confidence="low",
        saving=fewer(site.rows) | Saving(calls=unique(waits[waits >= 0])),
    )


def _is_shown(view: View, rows: I64) -> bool:
    found, duration = view.attribution, view.operations.duration_ns[rows]
    if (found.phase[rows] != Phase.FORWARD).any() or (found.line_phase[rows] == LinePhase.OPTIMIZER).any():
        return False
    shown = view.kernels_named(MATRIX) | view.kernels_named(CONVOLUTION) | view.kernels_named(SUMS)
    from_host = view.classes[rows] == OperationClass.HOST_TO_DEVICE
    return not from_host.any() and bool(duration[shown[rows]].sum() >= view[SHOWN] * duration.sum())


def _in_each_step(view: View, rows: I64) -> bool:
    steps, start_ns = view.steps, view.calls.start_ns[view.attribution.call[rows]]
    assert steps is not None
    with_it = np.searchsorted(np.sort(steps.host_start_ns), start_ns, "right") - 1
    return len(unique(with_it[with_it >= 0])) >= view[OFTEN] * (len(steps) - 1)


RULE = Rule(
    "unused_results",
    "Does each step of a training compute what is only looked at?",
    (SHARE, OFTEN, SHOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
