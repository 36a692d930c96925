# SPDX-License-Identifier: Apache-2.0
"""Which functions compute attention in separate kernels: a product, scale, mask, softmax, and a product?

Fused attention keeps the scores on the SM. Written out, each kernel between the two products writes the
matrix of scores to memory or reads it again, and so does their backward.

A softmax counts if the products before and after it on its stream were launched by the same function, with a
few memory-bound kernels and nothing else between them. The cost is the time of these kernels, and of those in
the backward of their lines. The products are not part of it: fused attention computes them too.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import KNOWN, MATRIX, MEMORY_BOUND, names_tell_little
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.phases import Phase

SHARE = Threshold("share", "kernels between the products", 0.05, "of the GPU time, from", "ours")
BETWEEN = Threshold("between", "kernels between two products", 12, "kernels, at most", "ours")
SOFTMAX = r"^(?!.*(logsoftmax|log_softmax|backward|softmax_warp_forward<.*, true, \w+>)).*softmax"
MASK = r"triu_tril"
OTHER_WORK = r"sort|topk|gather|scatter|index|embedding|nll"
WINS_FRAC = 0.95
REMEDY = "F.scaled_dot_product_attention or flash_attention: one kernel, no matrix of scores in memory"


def check(view: View) -> RuleResult:
    matrix = view.kernels_named(MATRIX)
    memory = view.kernels_named(MEMORY_BOUND) & ~matrix & ~view.kernels_named(OTHER_WORK)
    # A causal mask is often made on the spot, masked_fill copies its input, cuBLAS clears a workspace.
    memory |= view.kernels_named(MASK) | view.named("memcpy DtoD", "memset")
    softmax = memory & view.kernels_named(SOFTMAX)
    if not softmax.any():
        return names_tell_little(view) or ()
    function = view.function_of_line[view.operation_place]
    rows = _between(view, softmax, matrix, memory, function)
    duration, findings = view.operations.duration_ns, []
    for _, forward in grouped(rows, function[rows]):
        of_lines = np.isin(view.operation_place, view.operation_place[forward])
        backward = memory & of_lines & (view.attribution.phase == Phase.BACKWARD)
        mine = np.union1d(forward, np.flatnonzero(backward))
        total_ns = int(duration[mine].sum())
        place = view.hottest_line(mine, duration[mine])
        if place is None or total_ns < view[SHARE] * view.gpu_ns:
            continue
        findings.append(
            view.finding(
                f"{place.function} computes attention in separate kernels: {ms(total_ns)}, "
                f"{percent(total_ns / view.gpu_ns)} of the GPU time, in {len(mine):,} that scale, mask or "
                "normalise the scores" + ", forward and backward" * bool(backward.any()),
                cost_ns=gpu_time(view, mine),
                cost_of="GPU time of the kernels between the products",
                place=place,
                rows=mine,
                weight=duration[mine],
                remedy=REMEDY,
                confidence="medium",
                saving=fewer(mine, 1 - WINS_FRAC),
            )
        )
    return findings or view.too_few_lines("which function computes attention") or ()


def _between(view: View, softmax: Mask, matrix: Mask, memory: Mask, function: I32) -> I64:
    """The rows of the operations between the two products around each softmax of the forward pass."""
    operations, forward = view.operations, view.attribution.phase == Phase.FORWARD
    order = np.lexsort((operations.start_ns, operations.stream, operations.device, operations.process))
    products = np.flatnonzero(matrix[order])
    same = np.stack([operations.process, operations.device, operations.stream, function])
    chosen = np.zeros(len(order), dtype=bool)
    for at in np.flatnonzero((softmax & forward & (function >= 0))[order]).tolist():
        after = int(np.searchsorted(products, at))
        if after in (0, len(products)) or products[after] - products[after - 1] - 1 > view[BETWEEN]:
            continue
        rows = order[products[after - 1] : products[after] + 1]
        if memory[rows[1:-1]].all() and forward[rows].all() and (same[:, rows] == same[:, rows[:1]]).all():
            chosen[rows[1:-1]] = True
    return np.flatnonzero(chosen)


RULE = Rule(
    "unfused_attention",
    "Which functions compute attention in separate kernels?",
    (SHARE, BETWEEN, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    wins_frac=WINS_FRAC,
)
