# SPDX-License-Identifier: Apache-2.0
"""Are matrix multiplications computed in double precision? A tensor made from a NumPy array is float64 by
default.

They are recognised by kernel name (`f64`, `dgemm`, `d884`). GPUs for machine learning compute float64 at a
fraction of the rate of bfloat16, and it takes four times the memory. If the program needs double precision,
as a simulation may, skip this rule.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import KNOWN, names_tell_little
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

SHARE = Threshold("share", "float64 matrix multiplications", 0.02, "of the GPU time, from", "ours")
DOUBLE = r"f64f64|(?i:dgemm|_d884|d16816)|gem[mv]\w*<[^>]*\bdouble\b"
REMEDY = "convert to float32 where the tensor is made (torch.from_numpy(a).float(), dtype=torch.float32)"


def check(view: View) -> RuleResult:
    duration = view.operations.duration_ns
    double = np.flatnonzero(view.kernels_named(DOUBLE))
    findings = []
    for number, mine in grouped(double, view.operation_place[double]):
        total_ns = int(duration[mine].sum())
        if total_ns < view[SHARE] * view.gpu_ns:
            continue
        findings.append(
            view.finding(
                f"{len(mine):,} matrix multiplications in float64 take {ms(total_ns)}, "
                f"{percent(total_ns / view.gpu_ns)} of the GPU time, forward and backward",
                cost_ns=total_ns,
                cost_of="GPU time of the matrix multiplications",
                place=view.place(number),
                rows=mine,
                weight=duration[mine],
                remedy=REMEDY,
            )
        )
    return findings or names_tell_little(view) or ()


RULE = Rule(
    "double_precision",
    "Are matrix multiplications in double precision?",
    (SHARE, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    wins_frac=0.9,
)
