# SPDX-License-Identifier: Apache-2.0
"""Which functions only change the memory layout: contiguous(), cat, transposes, channels_last?

Such kernels compute nothing. They are recognised by name, copies within the GPU by their kind. A transpose
followed by contiguous() copies the tensor; a view does not. Sometimes the copy pays off, because the next
kernel would otherwise read with bad strides many times. Casts to another dtype and conversions inside of a
convolution (cuDNN's nchwToNhwc) are reported apart, because they have other remedies; what cuDNN converts at
once goes with the copy. Lines of one function are one finding, at the line that costs most. The cost is all
of their time. A third of it stays where copies may be needed in any layout: at lines that also multiply
matrices, and where backward joins the gradients of slices (chunk, unbind).
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.chains import within_chains
from profiling_lab.rules.converted_copies import with_conversions
from profiling_lab.rules.copy_reasons import of_changed_views, reasons
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Finding, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import CONVERTING, KNOWN, MATRIX, names_tell_little, rearranging
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import F64, Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import unique

SHARE = Threshold(
    "share", "layout changes in one function", 0.03, "of the GPU time, from", "ours: one kernel in thirty"
)
NEEDED_SAVED_FRAC, MUCH_FRAC = 2 / 3, 1 / 3
COPIES = "kernels and copies only change the memory layout"
CONVERSIONS = "kernels convert layouts for cuDNN"
JOINING = r"CatArrayBatchedCopy"
REMEDY = (
    "keep one layout throughout (channels_last, or strides that the next kernel accepts), write into a slice "
    "instead of cat, drop contiguous() if nothing needs it"
)
OF_CONVERSIONS = "convert model and input once to channels_last: .to(memory_format=torch.channels_last)"


def check(view: View) -> RuleResult:
    moves, casts = rearranging(view)
    moves &= ~within_chains(view)
    converts = view.kernels_named(CONVERTING)
    place, products = view.operation_place, view.kernels_named(MATRIX)
    needed = (place >= 0) & np.isin(place, place[products])
    needed |= view.kernels_named(JOINING) & (view.attribution.phase == Phase.BACKWARD)
    saved = np.where(needed & ~of_changed_views(view), NEEDED_SAVED_FRAC, 1.0)
    findings = by_function(view, moves & ~casts & ~converts, view[SHARE], COPIES, REMEDY, saved)
    findings = [with_conversions(view, finding) for finding in findings]
    findings += by_function(view, converts, view[SHARE], CONVERSIONS, OF_CONVERSIONS, np.ones_like(saved))
    return findings or names_tell_little(view) or ()


def by_function(
    view: View, counted: Mask, least_frac: float, what: str, remedy: str, saved: F64
) -> list[Finding]:
    """One finding for each function in which such kernels take at least `least_frac` of the GPU time.

    saved: per operation the fraction that the remedy saves.
    """
    duration, findings = view.operations.duration_ns, []
    rows, known = np.flatnonzero(counted), reasons(view)
    for _, mine in grouped(rows, view.function_of_line[view.operation_place[rows]]):
        total_ns = int(duration[mine].sum())
        if total_ns < least_frac * view.gpu_ns:
            continue
        phases = set(view.attribution.phase[mine].tolist())
        both = ", forward and backward" if {Phase.FORWARD, Phase.BACKWARD} <= phases else ""
        lines = len(unique(view.operation_place[mine]))
        much = [text for mask, text in known if duration[mine[mask[mine]]].sum() >= MUCH_FRAC * total_ns]
        findings.append(
            view.finding(
                f"{len(mine):,} {what}{f' at {lines} lines of one function' if lines > 1 else ''}: "
                f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time{both}",
                cost_ns=gpu_time(view, mine),
                cost_of="GPU time of these kernels and copies",
                place=view.hottest_line(mine, duration[mine]),
                rows=mine,
                weight=duration[mine],
                remedy=much[0] if much else remedy,
                confidence="medium",
                wins_frac=float(saved[mine] @ duration[mine]) / total_ns,
                saving=fewer(mine, 1 - saved[mine]),
            )
        )
    return findings


RULE = Rule(
    "layout_copies",
    "Which functions only change the memory layout?",
    (SHARE, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
