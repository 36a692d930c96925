# SPDX-License-Identifier: Apache-2.0
"""Is a layer applied to all positions of a sequence, of which the last one is used?

The next word follows from the last position: `model(prompt)[:, -1]`. The layer that gives scores for each
word of the vocabulary is often the largest of a model, and its result the largest tensor. It does the same at
each position, so it needs to be given the last one only: `self.head(x[:, -1:])`. The rule finds lines with
one product of matrices, and casts or copies beside it, whose result is indexed so: in the line, in those that
read the name it gave, or where the function is called that returns it. That there are many positions is known
from the norm before it, which has a block for each. At one position nearly nothing is left.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.rules.call_sites import in_a_row
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import CONVOLUTION, FUSED_ATTENTION, MATRIX, REARRANGING
from profiling_lab.rules.picked_positions import used_at_the_last
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.small_grids import blocks_of
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "such lines take", 0.05, "of the GPU time, at least", "ours: as medium")
MANY = Threshold(
    "many", "positions in a call", 1024, "at least", "ours: fewer may be sequences of one word each"
)
NORMS = r"layer_?norm|rms_?norm"
LEFT = 0.05
REMEDY = "take the last position before the layer: self.head(x[:, -1:]); in transformers logits_to_keep=1"


def check(view: View) -> RuleResult:
    products = (
        view.kernels_named(MATRIX) & ~view.kernels_named(CONVOLUTION) & ~view.kernels_named(FUSED_ATTENTION)
    )
    duration, least_ns = view.operations.duration_ns, max(view[SHARE] * view.gpu_ns, 1)
    if duration[products].sum() < least_ns:
        return ()
    if not view.trace.source_texts:
        return Abstain("the trace does not have the text of the lines", STACKS)
    positions, findings = _positions(view), []
    for number, rows in used_at_the_last(view, products):
        total_ns = int(duration[rows].sum())
        if total_ns < least_ns or not _is_one_layer(view, rows, products):
            continue
        if np.median(positions[rows[products[rows]]]) < view[MANY]:
            continue
        findings.append(
            view.finding(
                f"all positions get a result here, of which the last is used: {len(rows):,} kernels, "
                f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time",
                cost_ns=gpu_time(view, rows),
                cost_of="GPU time of these kernels",
                place=view.place(number),
                rows=rows,
                weight=duration[rows],
                remedy=REMEDY,
                confidence="medium",
                wins_frac=1 - LEFT,
                saving=shorter(rows, LEFT),
            )
        )
    return findings


def _positions(view: View) -> I64:
    """Per operation the blocks of the last norm that its thread launched before; 0 without one."""
    norms, blocks, found = view.kernels_named(NORMS), blocks_of(view), np.zeros(len(view.operations))
    known = np.flatnonzero(view.has_call)
    call = view.attribution.call[known]
    known = known[np.lexsort((view.calls.start_ns[call], view.calls.thread[call]))]
    last = np.maximum.accumulate(np.where(norms[known], np.arange(len(known)), -1))
    before = np.append(np.nan_to_num(blocks[known], posinf=0), 0)[last]
    found[known] = before
    return found.astype(np.int64)


def _is_one_layer(view: View, rows: I64, products: Mask) -> bool:
    """Whether the line multiplies once each time, and otherwise casts or moves."""
    forward = rows[view.attribution.phase[rows] == Phase.FORWARD]
    other = view.kernels & ~products & ~view.kernels_named(REARRANGING + r"|elementwise|" + NORMS)
    runs = [int(products[each].sum()) for each in in_a_row(view, forward)]
    return bool(runs) and max(runs) == 1 and not other[forward].any()


RULE = Rule(
    "unused_positions",
    "Is a layer applied to all positions, of which the last is used?",
    (SHARE, MANY),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
