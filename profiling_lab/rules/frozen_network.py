# SPDX-License-Identifier: Apache-2.0
"""Is most of a training the forward of a network that is not trained?

A head on a frozen network needs what that network makes of each input. If inputs come again, as in each epoch
without augmentation, this is the same each time, and can be kept: once computed, it is read. The rule finds a
call in nearly each step of a training through which nothing is trained, with multiplications and with norms,
which an augmentation has not. None of its lines launches anything that is trained elsewhere, as those of a
moving average of the trained network do. Whether the inputs come again is not in the recording: what is said
is what keeping would win, and causes that save much come before it.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.rules.call_sites import CallSite, call_sites, in_steps
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import CONVOLUTION, MATRIX
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import unique
from profiling_lab.trace.phases import LinePhase

SHARE = Threshold("share", "the call takes", 0.5, "of the GPU time, at least", "ours: most of it")
OFTEN = Threshold("often", "steps with the call", 0.9, "of all, at least", "ours: some begin the recording")
PRODUCTS_FRAC, NORMS = 0.25, r"layer_?norm|batch_?norm|group_?norm|rms_?norm|\bbn_fw"
"""of a network's time, at least, and what it has"""
REMEDY = (
    "nothing in it is trained: if inputs come again without augmentation, as in each epoch, keep what it "
    "makes of each (in memory or in a file) and train on that"
)


def check(view: View) -> RuleResult:
    found, duration = view.attribution, view.operations.duration_ns
    backward = found.phase == Phase.BACKWARD
    if not backward.any() or view.steps is None or not view.trace.source_texts:
        return Abstain("the trace has no backward, no steps, or no text of the lines", STACKS)
    trained = unique(view.operation_place[backward | (found.line_phase == LinePhase.OPTIMIZER)])
    products = view.kernels_named(MATRIX) | view.kernels_named(CONVOLUTION)
    sites = call_sites(view, view[SHARE] * view.gpu_ns, of_modules=True)
    frozen = [
        site
        for site in sites
        if not np.isin(view.operation_place[site.rows], trained).any()
        and duration[site.rows[products[site.rows]]].sum() >= PRODUCTS_FRAC * duration[site.rows].sum()
        and view.kernels_named(NORMS)[site.rows].any()
        and in_steps(view, view.steps, site.rows, view[OFTEN])
    ]
    if not frozen:
        return ()
    site = max(frozen, key=lambda each: (len(each.rows), _is_outer(each, frozen)))
    rows = site.rows
    total_ns = int(duration[rows].sum())
    return [
        view.finding(
            f"nothing is trained through what {site.callee.function} makes here in nearly each step: "
            f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of these calls",
            place=site.caller,
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            confidence="low",
            saving=fewer(rows),
        )
    ]


def _is_outer(site: CallSite, sites: list[CallSite]) -> bool:
    """Whether none of the others calls the function that this call is in."""
    return all(site.caller.function != other.callee.function for other in sites)


RULE = Rule(
    "frozen_network",
    "Is most of a training the forward of a network that is not trained?",
    (SHARE, OFTEN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    symptom=True,
    conditional=True,
    severity_at_most="medium",
)
