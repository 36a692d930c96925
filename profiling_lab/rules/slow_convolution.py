# SPDX-License-Identifier: Apache-2.0
"""Do convolutions take most of the GPU time? Their algorithm, layout and dtype make a large difference.

cuDNN picks an algorithm by heuristics unless it may benchmark (torch.backends.cudnn.benchmark), converts a
layout that it does not support well, and uses tensor cores only for TF32, fp16, bf16 and fp8. Convolutions
are recognised by kernel name, including the kernels that convert between NCHW and NHWC. The cost is the time
of the conversions and of the convolutions without tensor cores. Where there are none, nothing is reported:
the trace cannot tell whether another algorithm would be faster. Filters with hundreds of taps are found
whatever else there is (see long_filters.py).
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent, where
from profiling_lab.rules.kernel_families import (
    CONVERTING,
    CONVOLUTION,
    KNOWN,
    NO_TENSOR_CORES,
    TENSOR_CORES,
    names_tell_little,
)
from profiling_lab.rules.long_filters import long_filters
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

SHARE = Threshold("share", "convolutions", 0.6, "of the GPU time, from", "ours: more than all else together")
SLOW = Threshold(
    "slow", "conversions, and convolutions without tensor cores", 0.05, "of the GPU time, from", "ours"
)
WINS_FRAC = 0.5
REMEDY = (
    "torch.backends.cudnn.benchmark = True (with fixed sizes), model.to(memory_format=torch.channels_last), "
    "torch.autocast; CUDNN_LOGLEVEL_DBG shows the choice"
)


def check(view: View) -> RuleResult:
    duration = view.operations.duration_ns
    convolves = view.kernels_named(CONVOLUTION) | view.kernels_named(CONVERTING)
    rows = np.flatnonzero(convolves)
    total_ns = int(duration[rows].sum())
    if long := long_filters(view, view[SLOW]):
        return long
    if not total_ns or total_ns < view[SHARE] * view.gpu_ns:
        return names_tell_little(view) or ()
    converts = view.kernels_named(CONVERTING)
    fast = view.kernels_named(TENSOR_CORES) & ~view.kernels_named(NO_TENSOR_CORES) & ~converts
    slow = rows[~fast[rows]]
    cost_ns = gpu_time(view, slow) if len(slow) else 0
    if cost_ns < view[SLOW] * view.gpu_ns:
        return ()
    converting_ns = int(duration[converts].sum())
    layouts = f", {ms(converting_ns)} of it for layout conversion" if converting_ns else ""
    place = view.hottest_line(slow, duration[slow])
    return [
        view.finding(
            f"convolutions take {ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, in "
            f"{len(rows):,} kernels{layouts}{where(place, '; most of the cost is on this line')}",
            cost_ns=cost_ns,
            cost_of="GPU time of conversions and of convolutions without tensor cores",
            place=place,
            rows=slow,
            weight=duration[slow],
            remedy=REMEDY,
            confidence="medium",
            saving=shorter(slow, 1 - WINS_FRAC),
        )
    ]


RULE = Rule(
    "slow_convolution",
    "Do convolutions take most of the time?",
    (SHARE, SLOW, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    wins_frac=WINS_FRAC,
)
