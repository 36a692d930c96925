# SPDX-License-Identifier: Apache-2.0
"""Which long kernels have blocks for a few SMs only, while the rest of the GPU is free?

A block runs on one SM, so a kernel with fewer blocks than SMs leaves some free, however much work each has.
Some operations of torch make one block for each row, or one for all: `softmax` and `cross_entropy` over a
dimension that is not the last one, the mean of `nll_loss`. What takes all SMs instead is known, and with it
what it saves: the part that is free. Of others only the most is said. Products and collectives are left out,
and so are kernels whose grid follows from the width of a layer or the number of parameters, which no other
call of the same operation widens. The time in which other kernels fill the GPU does not count.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.analysis.stats import grouped
from profiling_lab.records import replace
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import CALLS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.small_grids import FILLED, MORE_BLOCKS, blocks_of, filled, small_grids, unfilled_ns
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import combined
from profiling_lab.trace.operation_classes import OperationClass

LONG = Threshold("long", "a kernel takes", 50_000, "ns, from", "ours: a launch costs less")
SHARE = Threshold("share", "such kernels of one function", 0.03, "of the GPU time, from", "ours")
USUALLY_FRAC = 0.4  # of the time of kernels whose remedy is not known
FAMILIES = (
    (
        "spatial_softmax",
        r"cunn_spatialsoftmax",
        "put the dimension of softmax or the classes of a loss last, which has a block for each row: "
        "cross_entropy(scores.flatten(0, -2), target.flatten()), not scores.transpose(1, 2)",
    ),
    (
        "loss_mean",
        r"nll_loss\d?d?_(forward|backward)_reduce",
        "one block adds all losses: reduction='none', and .mean() behind it",
    ),
)
"""cause, names of kernels, and what torch does with all SMs instead"""
FIXED = r"gammabeta|multi_tensor_apply|embedding_backward|elementwise_bp|sortpartition"
"""the gradients of a norm's weights, optimizers, cuDNN's recurrent layers, a small part of sorting"""


def check(view: View) -> RuleResult:
    operations = view.operations
    long = view.kernels & (operations.duration_ns >= view[LONG])
    if operations.duration_ns[long].sum() < view[SHARE] * view.gpu_ns:
        return ()
    known = np.isfinite(blocks_of(view)[long]) & any(gpu.sm_count for gpu in view.trace.devices.values())
    if not known.any():
        return Abstain("the trace does not say how many blocks its kernels and SMs its GPUs have", CALLS)
    few = long & small_grids(view) & (view.classes != OperationClass.COMMUNICATION)
    rows = np.flatnonzero(few & ~view.kernels_named(MATRIX) & ~view.kernels_named(FIXED))
    alone_ns, filled_frac = unfilled_ns(view, rows), filled(view)[rows]
    family = np.full(len(rows), len(FAMILIES))
    for number, (_, names, _) in enumerate(FAMILIES):
        family[view.kernels_named(names)[rows]] = number
    function = view.function_of_line[view.operation_place[rows]]
    findings = []
    for _, mine in grouped(np.arange(len(rows)), combined(family.astype(np.int32), function)[0]):
        of, took_ns, part = rows[mine], alone_ns[mine], filled_frac[mine]
        if took_ns.sum() < max(view[SHARE] * view.gpu_ns, 1):
            continue
        of_family = (*FAMILIES, None)[family[mine[0]]]
        free_frac = 1 - float(part @ took_ns) / int(took_ns.sum())
        left = 1 - took_ns * (1 - part) / operations.duration_ns[of]
        finding = view.finding(
            f"{len(of):,} kernels of {ms(float(operations.duration_ns[of].mean()))} on average leave "
            f"{percent(free_frac)} of the SMs free: {ms(int(took_ns.sum()))}, "
            f"{percent(took_ns.sum() / view.gpu_ns)} of the GPU time",
            cost_ns=gpu_time(view, of, took_ns),
            cost_of="GPU time of these kernels",
            place=view.hottest_line(of, took_ns),
            rows=of,
            weight=took_ns,
            remedy=of_family[2] if of_family else MORE_BLOCKS,
            cause=of_family[0] if of_family else "",
            wins_frac=free_frac if of_family else USUALLY_FRAC,
            saving=shorter(of, left) if of_family else None,
        )
        findings.append(finding if of_family else replace(finding, severity_at_most="medium"))
    return findings or ()


RULE = Rule(
    "few_blocks",
    "Which long kernels leave most of the GPU free?",
    (LONG, SHARE, FILLED),
    check,
    __doc__ or "",
    time=Time.BUSY,
    generic=True,
)
