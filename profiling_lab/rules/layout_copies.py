# SPDX-License-Identifier: Apache-2.0
"""Which lines only change the memory layout or the dtype: contiguous(), cat, transposes, channels_last,
casts?

Such kernels compute nothing. They are recognised by name, copies within the GPU by their kind. A transpose
followed by contiguous() copies the tensor; a view does not. Sometimes the copy pays off, because the next
kernel would otherwise read with bad strides many times. Casts to another dtype (`aten::_to_copy`) are
reported separately, because a different layout does not remove them. The cost is all of their time.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Finding, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import CASTING, KNOWN, REARRANGING, names_tell_little
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import BLEED_NS, Phase
from profiling_lab.trace.columns import full

SHARE = Threshold(
    "share", "layout changes at one line", 0.03, "of the GPU time, from", "ours: one kernel in thirty"
)
REMEDY = (
    "keep one layout throughout (channels_last, or strides that the next kernel accepts), write into a slice "
    "instead of cat, drop contiguous() if nothing needs it"
)

OF_CASTS = (
    "keep one dtype throughout: cast weights and inputs once before the loop, create tensors with the "
    "dtype that "
    "is needed, and let torch.autocast cover whole blocks instead of single operations"
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
    named, ranges = view.kernels_named(CASTING), view.trace.ranges
    copying = np.array([bool(re.match(COPYING, name)) for name in ranges.names] or [False])[ranges.name]
    if not copying.any():
        return named
    rows = np.flatnonzero(ranges.domain == 0)
    times = ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows]
    nothing = np.empty(0, dtype=np.int64)
    parent, _, _ = _analysis.contain(*times, nothing, nothing.astype(np.int32), BLEED_NS)
    nearest = full(len(ranges) + 1, -1, np.int32)
    nearest[rows] = np.append(rows, -1)[_analysis.nearest_marked(parent, copying[rows].astype(np.uint8))]
    casts = np.array([*(name == "aten::_to_copy" for name in ranges.names), False])
    name = np.append(ranges.name, np.int32(-1))[nearest[view.attribution.range]]
    # `_to_copy` with equal dtypes changes the layout; its kernel's name shows that it does not cast.
    return np.asarray(named | (view.kernels & casts[name] & ~view.kernels_named("nocast")))


RULE = Rule(
    "layout_copies",
    "Which lines only change the memory layout or cast?",
    (SHARE, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
