# SPDX-License-Identifier: Apache-2.0
"""Which lines only rearrange memory: contiguous(), cat, transposes, changes of layout?

Such kernels compute nothing; they are told by their names, copies within the GPU by their kind. A transpose
that is followed by contiguous() copies; a view does not. Now and then the copy pays, where the next kernel
would read badly many times. The cost is all their time.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Threshold, Verdict, ms, percent
from profiling_lab.rules.kernel_families import KNOWN, REARRANGING, names_tell_little
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View

SHARE = Threshold(
    "share", "rearranging at one line", 0.03, "of the GPU time, from", "ours: one kernel in thirty"
)
REMEDY = (
    "keep one layout throughout (channels_last, or strides that the next kernel takes), write into a slice "
    "instead of cat, drop contiguous() where nothing needs it"
)


def check(view: View) -> Verdict:
    duration = view.operations.duration_ns
    moves = view.kernels_named(REARRANGING) | view.named("memcpy DtoD")
    findings = []
    for number, mine in grouped(np.flatnonzero(moves), view.operation_place[moves]):
        total_ns = int(duration[mine].sum())
        if total_ns < view[SHARE] * view.gpu_ns:
            continue
        findings.append(
            view.finding(
                f"{len(mine):,} kernels and copies only rearrange memory: {ms(total_ns)}, "
                f"{percent(total_ns / view.gpu_ns)} of the GPU time, forward and backward",
                cost_ns=gpu_time(view, mine),
                cost_of="GPU time of rearranging",
                place=view.place(number),
                rows=mine,
                weight=duration[mine],
                remedy=REMEDY,
                confidence="medium",
            )
        )
    return findings or names_tell_little(view) or ()


RULE = Rule("layout_copies", "Which lines only rearrange memory?", (SHARE, KNOWN), check, __doc__ or "")
