# SPDX-License-Identifier: Apache-2.0
"""Do layers run on after the last one whose output is used?

A network that is run to its end, for the output of a layer in its middle, computes the rest for nothing.
Backward never comes to nodes whose result does not go into the loss. That is so of all products of an
evaluation without `no_grad`, and of a target that is detached: calls of their own. But where the first
products of a line have their backward, and all that follow have none, the network ran further than its result
is used. It must be so after the same number of products in nearly each backward: an exit that some steps
train is no such thing. And it must be one call: each layer gets what the one before it made
(`x = layer(x)`), or the kernels do not begin again. So that a target is none, no line around says `detach`.
Calls of the same line under `no_grad` that multiply the same have the same result, so they count, too. What
is computed there may be looked at: the severity is at most medium.
"""

from __future__ import annotations

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.layers_behind import layers_behind
from profiling_lab.rules.passes import backward_passes, undecided
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

SHARE = Threshold("share", "such layers take", 0.05, "of the GPU time, at least", "ours: as medium")
OFTEN = Threshold("often", "backwards that come as far", 0.9, "of all, at least", "ours: some are cut off")
REMEDY = (
    "stop at the last layer whose output is used: go through the layers until there alone, or cut the "
    "network when it is made (features[:n])"
)


def check(view: View) -> RuleResult:
    if (abstains := undecided(backward_passes(view))) is not None:
        return abstains
    rows, duration = layers_behind(view, view[OFTEN]), view.operations.duration_ns
    total_ns = int(duration[rows].sum())
    if total_ns < max(view[SHARE] * view.gpu_ns, 1):
        return ()
    return [
        view.finding(
            "a network runs on after the last layer that backward comes to: what it computes there takes "
            f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, in {len(rows):,} operations",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of the layers behind",
            place=view.hottest_line(rows, duration[rows]),
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            confidence="medium",
            saving=fewer(rows),
        )
    ]


RULE = Rule(
    "unused_layers",
    "Do layers run on after the last one whose output is used?",
    (SHARE, OFTEN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
