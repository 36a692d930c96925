# SPDX-License-Identifier: Apache-2.0
"""Does backward compute gradients of parameters that no optimizer updates?

`zero_grad()` drops the gradients of what its optimizer updates, so the first backward after a step stores new
ones and launches nothing for that. If it adds to gradients (AccumulateGrad) instead, these have been there
since before the step: the step did not use them, and nothing cleared them. That is so with parameters of a
network that is frozen but asks for gradients, and with those of a network that another optimizer updates. Of
later backwards before the same step, which accumulate gradients, nothing is said, nor where zero_grad fills
gradients with zeros.

The cost is that of the gradients of these weights: of their nodes what is not the gradient of the input, and
half of the matrix multiplications. If all parameters that are known to be used got their gradients before,
the rest of the pass is for nothing, too: what goes into that part can be detached. So is the gradient of an
input that nothing uses (see input_gradients.py).
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.input_gradients import of_inputs
from profiling_lab.rules.passes import backward_passes, undecided
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.stale_gradients import for_nothing, stale
from profiling_lab.rules.view import View

SHARE = Threshold("share", "gradients that nothing uses take", 0.03, "of the GPU time, at least", "ours")
OF_WEIGHTS = "freeze these parameters (requires_grad_(False)): gradients still go through to what is before"
OF_ALL_BEFORE = (
    "detach() what comes from this part of the network for this loss, or compute it under torch.no_grad(): "
    "nothing in it is updated by the step that follows"
)


def check(view: View) -> RuleResult:
    passes = backward_passes(view)
    if (abstains := undecided(passes)) is not None:
        return abstains
    added, duration = stale(view, passes), view.operations.duration_ns
    findings = of_inputs(view, passes, view[SHARE] * view.gpu_ns)
    for _, steps in grouped(np.arange(len(added.place)), added.updating):
        at, left, detached = for_nothing(view, passes, added, steps)
        rows = passes.rows[at]
        total_ns = int((duration[rows] * (1 - left)).sum())
        if not total_ns or total_ns < view[SHARE] * view.gpu_ns:
            continue
        updating = view.place(int(added.updating[steps[0]]))
        findings.append(
            view.finding(
                f"gradients are computed for parameters that the next step of an optimizer "
                f"{f'(line {updating.line}) ' if updating else ''}does not use: {ms(total_ns)}, "
                f"{percent(total_ns / view.gpu_ns)} of the GPU time; {len(steps):,} times a gradient was "
                "added to one from before the last step",
                cost_ns=gpu_time(view, rows),
                cost_of="GPU time of these gradients",
                place=view.hottest_line(rows, (duration[rows] * (1 - left)).astype(np.int64)),
                rows=rows,
                weight=duration[rows],
                remedy=OF_ALL_BEFORE if detached else OF_WEIGHTS,
                confidence="medium",
                wins_frac=total_ns / max(int(duration[rows].sum()), 1),
                saving=fewer(rows, left),
            )
        )
    return findings


RULE = Rule(
    "unused_gradients",
    "Does backward compute gradients that no optimizer uses?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
