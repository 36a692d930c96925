# SPDX-License-Identifier: Apache-2.0
"""Are copies of vectors joined, pair by pair, for a product that could be taken of each vector?

`linear(cat((a, b), -1))` is the sum of two products: of `a` with the left half of the weight, and of `b` with
the right. Where the same `a` stands in many rows, because it was expanded or repeated to meet each `b`, its
product is needed once. So `linear_a(a)[:, :, None] + linear_b(b)[:, None]` gives the same from small products
and a sum that is broadcast, and nothing is joined. The rule finds lines that join tensors along the last
dimension, for a product, and counts the parts that are expanded or repeated: the
text says it of them, or backward sums up over their copies (ExpandBackward, RepeatBackward). The copies are
saved, and of the product the share of these parts; at least a tenth of it is left, for the sum.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer, shorter
from profiling_lab.rules.costs import gpu_time, kernels_and_time
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold
from profiling_lab.rules.joined_parts import copies_in_backward, first_products, joined_for
from profiling_lab.rules.kernel_families import CONVOLUTION, MATRIX, REARRANGING
from profiling_lab.rules.passes import of_nodes
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase

SHARE = Threshold("share", "such a line takes", 0.05, "of the GPU time, at least", "ours: as medium")
SPREAD, LEFT = r"^(Expand|Repeat)Backward", 0.1
REMEDY = (
    "split the weight: product of each vector with its part, then a sum that is broadcast: "
    "left, right = weight.chunk(2, dim=1); F.linear(a, left, bias)[:, :, None] + F.linear(b, right)[:, None]"
)


def check(view: View) -> RuleResult:
    duration, least_ns = view.operations.duration_ns, max(view[SHARE] * view.gpu_ns, 1)
    products = view.kernels_named(MATRIX) & ~view.kernels_named(CONVOLUTION)
    if duration[products].sum() < least_ns:
        return ()
    if not view.trace.source_texts:
        return Abstain("the trace does not have the text of the lines", STACKS)
    statements, findings, forward = Statements(view), [], view.attribution.phase == Phase.FORWARD
    moves, spreads = view.kernels_named(REARRANGING) & forward, of_nodes(view, SPREAD)
    for number in statements.of:
        rows = statements.rows(number)
        if not products[rows].any() or (found := joined_for(statements, number)) is None:
            continue
        joins, multiplied = statements.rows(found.line), first_products(view, rows, products)
        copies = max(found.copies, copies_in_backward(view, joins, spreads))
        if not copies or not len(multiplied):
            continue
        left, joined = max(1 - copies / found.parts, LEFT), joins[moves[joins]]
        counted = np.concatenate([joined, multiplied])
        total_ns = int(duration[counted].sum())
        if total_ns < least_ns:
            continue
        findings.append(
            view.finding(
                f"{min(copies, found.parts)} of {found.parts} parts that are joined for a product are copies "
                f"of fewer vectors: {kernels_and_time(view, counted)}",
                cost_ns=gpu_time(view, counted),
                cost_of="GPU time of joining them, and of the product",
                place=view.hottest_line(counted, duration[counted]),
                rows=counted,
                weight=duration[counted],
                remedy=REMEDY,
                confidence="medium",
                wins_frac=1 - left * float(duration[multiplied].sum()) / total_ns,
                saving=fewer(joined) | shorter(multiplied, left),
            )
        )
    return findings


RULE = Rule(
    "joined_products",
    "Are copies of vectors joined for a product?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
