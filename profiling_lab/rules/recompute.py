# SPDX-License-Identifier: Apache-2.0
"""How much GPU time does activation checkpointing spend on computing forward a second time, or a method?

Everything that backward launches from inside torch/utils/checkpoint.py is recomputed forward. This saves
memory. Whether it is worth the time is your decision, so the cost is all of it. What a method without
arguments computes again is found, too (see same_results.py), what each pass of a comprehension does (see
draws.py), what copies of rows give (see repeated_rows.py), and what depends on shapes alone (see
made_of_shapes.py). Only you know whether what it reads has changed, so its severity is at most medium.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms, percent, where
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.same_results import of_methods
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.phases import LinePhase, Phase

_CHECKPOINT = "/torch/utils/checkpoint.py"
SHARE = Threshold(
    "share",
    "recomputation takes",
    0.1,
    "of the GPU time, at least",
    "ours: checkpointing every layer takes a quarter",
)
REMEDY = "checkpoint fewer layers if memory allows, or only cheap operations (selective checkpointing)"


def check(view: View) -> RuleResult:
    found, duration = view.attribution, view.operations.duration_ns
    if len(view.trace.stacks) == 1:
        return Abstain("the trace has no Python stacks", STACKS)
    methods = of_methods(view, view[SHARE] * view.gpu_ns)
    if not methods and not (found.phase == Phase.BACKWARD).any():
        return Abstain("the trace has no backward, or does not distinguish it from forward", STACKS)
    rows = np.flatnonzero(found.line_phase == LinePhase.RECOMPUTE)
    total_ns = int(duration[rows].sum())
    share = total_ns / view.gpu_ns
    if not total_ns or share < view[SHARE]:
        return methods or view.too_few_calls(found.call >= -1, "GPU operations") or ()
    place = _checkpointing_line(view, rows) or view.hottest_line(rows, duration[rows])
    return [
        view.finding(
            what=f"{percent(share)} of the GPU time is recomputed forward (activation checkpointing): "
            f"{ms(total_ns)}"
            f" in {len(rows):,} operations{where(place, ', most of it on this line')}",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of the recomputation",
            place=place,
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            saving=fewer(rows),
        ),
        *methods,
    ]


def _checkpointing_line(view: View, rows: I64) -> Frame | None:
    """The line whose checkpoint() call causes most of the recomputation. It is in the stacks of forward,
    where the same lines run inside the call.
    """
    stacks, found = view.trace.stacks, view.attribution
    inside = stacks.passes_through((_CHECKPOINT,))
    forward = np.flatnonzero((found.line_phase != LinePhase.RECOMPUTE) & (inside[found.stack] > 0))
    again = unique(view.operation_place[rows])
    row = inside[found.stack[forward[np.isin(view.operation_place[forward], again)]]]
    while (
        (further := inside[stacks.parent[row]]) > 0
    ).any():  # up to the outermost frame of checkpoint's file
        row = np.where(further > 0, further, row)
    caller = view.place_of_stack(stacks.parent[row].astype(np.int32))
    caller = caller[caller >= 0]
    return view.place(int(np.bincount(caller).argmax())) if len(caller) else None


RULE = Rule(
    "recompute",
    "How much GPU time goes into computing the same again?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
