# SPDX-License-Identifier: Apache-2.0
"""Which functions only cast to another dtype?

Casts are recognised by the kernel's name, or by the operator `aten::_to_copy` around its launch. Under
torch.autocast each step casts the weights: every program in mixed precision has casts, so the severity is at
most medium. Lines of one function are one finding, at the line that costs most. The cost is all of their
time. A remedy saves about half of it: some casts remain, and a fused one still reads and writes. Where
nothing is trained (our recorder saw no backward) the weights never change: cast once before the loop, they
save all of it, and what is computed between a cast and the cast of its result, as the scale of a weight of
eight bits.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.records import replace
from profiling_lab.rules.chains import ELEMENT_BY_ELEMENT, by_stream, ends_of_runs
from profiling_lab.rules.finding import RuleResult, Threshold
from profiling_lab.rules.kernel_families import KNOWN, names_tell_little, rearranging
from profiling_lab.rules.layout_copies import by_function
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "casts in one function", 0.03, "of the GPU time, from", "ours: as layout_copies")
WINS_FRAC = 0.5
REMEDY = (
    "keep one dtype throughout: cast weights and inputs once before the loop, create tensors with the "
    "dtype that is needed, and let torch.autocast cover whole blocks instead of single operations"
)


def check(view: View) -> RuleResult:
    _, casts = rearranging(view)
    trains = _may_train(view)
    saved = np.full(len(view.operations), WINS_FRAC if trains else 1.0)
    found = by_function(view, casts, view[SHARE], "kernels only cast to another dtype", REMEDY, saved)
    if found and not trains:
        chain = _chains(view, casts)
        for number, finding in enumerate(found):
            if finding.saving is not None:
                mine = np.isin(chain, chain[finding.saving.operations]) & (chain >= 0)
                found[number] = replace(finding, saving=finding.saving | fewer(np.flatnonzero(mine)))
    return found or names_tell_little(view) or ()


def _chains(view: View, casts: Mask) -> I64:
    """Per operation the number of its chain, -1 none: elementwise kernels that follow each other on a stream,
    from a cast to a cast.
    """
    order, begins = by_stream(view)
    within = (casts | view.kernels_named(ELEMENT_BY_ELEMENT))[order]
    run = np.cumsum(
        begins | ~within, dtype=np.int64
    )  # what ends a run has a number that it shares with the run after it
    first, last = ends_of_runs(run, casts[order])
    position = np.arange(len(order))
    between = within & (first <= position) & (position <= last)
    chain = np.full(len(order), -1, dtype=np.int64)
    chain[order[between]] = run[between]
    return chain


def _may_train(view: View) -> bool:
    trace = view.trace.whole  # backward may lie outside of the window
    sees_backward = trace.recorder_facts.get("autograd_link") == "on"
    return not sees_backward or bool((trace.attribution.phase == Phase.BACKWARD).any())


RULE = Rule(
    "dtype_casts",
    "Which functions only cast to another dtype?",
    (SHARE, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
    wins_frac=WINS_FRAC,
)
