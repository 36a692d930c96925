# SPDX-License-Identifier: Apache-2.0
"""Is the whole spectrum of a real signal computed, of which one half mirrors the other?

torch.fft.fft of real numbers computes one half, and a kernel of its own mirrors it. What follows works on
twice as much: products with the spectrum, and torch.fft.ifft, of which `.real` drops what should be zero.
rfft and irfft leave the mirrored half out. The mirroring kernel is found by its name. It goes, and of what
the same function does with complex numbers, and of its inverse transforms whose line takes `.real`, half
goes. Backward is not counted: that of rfft is a transform of the whole, too.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer, shorter
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase

SHARE = Threshold("share", "the mirrored half takes", 0.03, "of the GPU time, at least", "as layout_copies")
MIRRORS, TRANSFORMS = r"_fft_conjugate_copy", r"fft(?!\w*_(r2c|c2r))"
OF_COMPLEX = r"elementwise_kernel.*c10::complex"
INVERSE = re.compile(r"\bifft[2n]?\(.*\.real\b|\breal\(.*\bifft[2n]?\(")
"""text of a line"""
HALF = 0.5
REMEDY = "torch.fft.rfft, and irfft(..., n=length) back: a filter then needs its first n // 2 + 1 values only"


def check(view: View) -> RuleResult:
    mirrors, duration = view.kernels_named(MIRRORS), view.operations.duration_ns
    if not mirrors.any():
        return ()
    function = view.function_of_line[view.operation_place]
    forward = view.attribution.phase == Phase.FORWARD
    halved = (view.kernels_named(OF_COMPLEX) | (_inverse(view) & view.kernels_named(TRANSFORMS))) & forward
    findings = []
    for number, mine in grouped(np.flatnonzero(mirrors), function[mirrors]):
        rest = np.flatnonzero(halved & ~mirrors & (function == number)) if number >= 0 else mine[:0]
        rows = np.concatenate([mine, rest])
        saved_ns = duration[rows] * np.where(mirrors[rows], 1.0, HALF)
        if saved_ns.sum() < view[SHARE] * view.gpu_ns:
            continue
        findings.append(
            view.finding(
                f"{len(mine):,} spectra of real numbers are mirrored: {ms(int(duration[mine].sum()))}, and "
                f"{len(rest):,} kernels work on both halves: {ms(int(duration[rest].sum()))}, together "
                f"{percent(duration[rows].sum() / view.gpu_ns)} of the GPU time",
                cost_ns=gpu_time(view, rows, saved_ns.astype(np.int64)),
                cost_of="GPU time of the mirrored half",
                place=view.hottest_line(mine, duration[mine]),
                rows=rows,
                weight=duration[rows],
                remedy=REMEDY,
                confidence="medium",
                saving=fewer(mine) | shorter(rest, HALF),
            )
        )
    return findings or view.too_few_lines("what else is done with spectra") or ()


def _inverse(view: View) -> Mask:
    """Per operation, whether its line takes the real part of an inverse transform."""
    texts = view.trace.source_texts
    places = (view.place(number) for number in range(view.lines))
    told = [INVERSE.search(texts.get((at.file, at.line), "")) is not None if at else False for at in places]
    return np.array([*told, False])[view.operation_place]


RULE = Rule(
    "mirrored_spectrum",
    "Is the whole spectrum of a real signal computed?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
