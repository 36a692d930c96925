# SPDX-License-Identifier: Apache-2.0
"""Which lines only change the memory layout or the dtype: contiguous(), cat, transposes, channels_last,
casts?

Such kernels compute nothing. They are recognised by name, copies within the GPU by their kind. A transpose
followed by contiguous() copies the tensor; a view does not. Sometimes the copy pays off, because the next
kernel would otherwise read with bad strides many times. Casts to another dtype (`aten::_to_copy`) are
reported separately, because a different layout does not remove them. The cost is all of their time.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.operators import innermost_is
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Finding, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import CASTING, KNOWN, REARRANGING, names_tell_little
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase

SHARE = Threshold(
    "share", "layout changes at one line", 0.03, "of the GPU time, from", "ours: one kernel in thirty"
)
REMEDY = (
    "keep one layout throughout (channels_last, or strides that the next kernel accepts), write into a slice "
    "instead of cat, drop contiguous() if nothing needs it"
)

OF_CASTS = (
    "keep one dtype throughout: cast weights and inputs once before the loop, create tensors with the "
    "dtype that is needed, and let torch.autocast cover whole blocks instead of single operations"
)
COPYING = r"^aten::(_to_copy|clone|contiguous|cat|stack|pad|_reshape_copy)$"


def check(view: View) -> RuleResult:
    moves = view.kernels_named(REARRANGING) | view.named("memcpy DtoD")
    casts = moves & _casts(view)
    findings = [
        *_by_line(view, moves & ~casts, "kernels and copies only change the memory layout", REMEDY),
        *_by_line(view, casts, "kernels only cast to another dtype", OF_CASTS),
    ]
    return findings or names_tell_little(view) or ()


def _by_line(view: View, counted: Mask, what: str, remedy: str) -> list[Finding]:
    duration, findings = view.operations.duration_ns, []
    for number, mine in grouped(np.flatnonzero(counted), view.operation_place[counted]):
        total_ns = int(duration[mine].sum())
        if total_ns < view[SHARE] * view.gpu_ns:
            continue
        phases = set(view.attribution.phase[mine].tolist())
        both = ", forward and backward" if {Phase.FORWARD, Phase.BACKWARD} <= phases else ""
        findings.append(
            view.finding(
                f"{len(mine):,} {what}: {ms(total_ns)}, "
                f"{percent(total_ns / view.gpu_ns)} of the GPU time{both}",
                cost_ns=gpu_time(view, mine),
                cost_of="GPU time of these kernels and copies",
                place=view.place(number),
                rows=mine,
                weight=duration[mine],
                remedy=remedy,
                confidence="medium",
            )
        )
    return findings


def _casts(view: View) -> Mask:
    """Per operation, whether it is a kernel that casts to another dtype: by its name, or because the
    innermost copying operator of torch around its launch is a cast.
    """
    named = view.kernels_named(CASTING)
    casts = innermost_is(view.trace, COPYING, "aten::_to_copy")
    if casts is None:
        return named
    # `_to_copy` with equal dtypes changes the layout; its kernel's name shows that it does not cast.
    return np.asarray(named | (view.kernels & casts & ~view.kernels_named("nocast")))


RULE = Rule(
    "layout_copies",
    "Which lines only change the memory layout or cast?",
    (SHARE, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
