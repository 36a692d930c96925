# SPDX-License-Identifier: Apache-2.0
"""Are batch norms computed for themselves, where nothing is trained?

Once training is over, a batch norm multiplies each channel by a number and adds another. The layer before can
do both: its weights and its bias are multiplied, once, and the norm is gone. A linear layer adds its bias
within the kernel of its product, so that folding takes away one reading and one writing of all that it makes.
torch adds the bias of a convolution in a kernel of its own, so folding wins only where there is one already.
The rule finds kernels of a norm without statistics right behind those, at lines without backward.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.chains import by_stream
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import CONVOLUTION, MATRIX
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "such norms take", 0.05, "of the GPU time, at least", "ours: as medium")
NORMS, STATISTICS = r"batch_norm_transform_input|batch_norm_elementwise|bn_fw_inf", r"statistics"
ADDS = r"elementwise_kernel.*functor_?add"
LONG_FRAC, FARTHEST = 0.1, 8
"""of the time of a norm, what counts takes at least; how many operations before it are looked at"""
REMEDY = (
    "fold it into the layer before: torch.nn.utils.fusion.fuse_linear_bn_eval or fuse_conv_bn_eval, on a "
    "model in eval()"
)


def check(view: View) -> RuleResult:
    duration, place = view.operations.duration_ns, view.operation_place
    rows = _behind_a_bias(view, view.kernels_named(NORMS))
    trained = (view.attribution.phase == Phase.BACKWARD) | view.kernels_named(STATISTICS)
    rows = rows[~np.isin(place[rows], place[trained])]
    findings = []
    for _, mine in grouped(rows, view.function_of_line[place[rows]]):
        total_ns = int(duration[mine].sum())
        if total_ns < max(view[SHARE] * view.gpu_ns, 1):
            continue
        findings.append(
            view.finding(
                f"{len(mine):,} batch norms are computed for themselves, though nothing is trained: "
                f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time",
                cost_ns=gpu_time(view, mine),
                cost_of="GPU time of these norms",
                place=view.hottest_line(mine, duration[mine]),
                rows=mine,
                weight=duration[mine],
                remedy=REMEDY,
                saving=fewer(mine),
            )
        )
    return findings or view.too_few_lines("which layers have norms behind them") or ()


def _behind_a_bias(view: View, norms: Mask) -> I64:
    """Norms right behind a product, or behind the bias of a convolution, on their stream, with at most what
    works on numbers of channels in between: that is done at once.
    """
    operations, (order, begins) = view.operations, by_stream(view)
    product, convolution, adds = (view.kernels_named(name)[order] for name in (MATRIX, CONVOLUTION, ADDS))
    duration, stream = operations.duration_ns[order], np.cumsum(begins)
    found = []
    for at in np.flatnonzero(norms[order]).tolist():
        before = range(at - 1, max(at - FARTHEST, 0) - 1, -1)
        long = [n for n in before if stream[n] == stream[at] and duration[n] >= LONG_FRAC * duration[at]]
        behind_linear = long and product[long[0]] and not convolution[long[0]]
        if behind_linear or (len(long) > 1 and adds[long[0]] and convolution[long[1]]):
            found.append(at)
    return np.sort(order[found]).astype(np.int64)


RULE = Rule(
    "unfolded_norms",
    "Are batch norms computed for themselves, where nothing is trained?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
