# SPDX-License-Identifier: Apache-2.0
"""Convolutions of each channel with a filter of its own that have hundreds of taps, such as an echo.

They take as many multiplications for each result as the filter has taps, by Fourier transforms a few dozen.
torch's kernel for filters of any size has a thread for each result, so its grid tells how many there are, and
its time about how many taps: an H200 multiplies about 25 times per ns on each SM in it.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Finding, ms, percent
from profiling_lab.rules.small_grids import sms_of, threads_of
from profiling_lab.rules.view import View

_OF_ANY_SIZE = r"conv_depthwise2d_(forward|backward)_kernel_generic"
_PER_SM_NS, _TAPS = 25.0, 1_000
LEFT = 0.2
"""of their time takes the way by Fourier transforms: experience"""
REMEDY = (
    "multiply spectra instead: torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(taps, n), n), with n "
    "from the length of both together"
)


def long_filters(view: View, least_frac: float) -> list[Finding]:
    """Where these kernels take at least this part of the GPU time."""
    duration, threads = view.operations.duration_ns, threads_of(view)
    rows = np.flatnonzero(view.kernels_named(_OF_ANY_SIZE) & np.isfinite(threads))
    taps = duration[rows] * sms_of(view)[rows] * _PER_SM_NS / threads[rows]
    rows, taps = rows[taps >= _TAPS], taps[taps >= _TAPS]
    total_ns = int(duration[rows].sum())
    if not total_ns or total_ns < least_frac * view.gpu_ns:
        return []
    return [
        view.finding(
            f"convolutions with filters of about {np.median(taps):,.0f} taps, result by result: "
            f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time in {len(rows):,} kernels",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of these convolutions",
            place=view.hottest_line(rows, duration[rows]),
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            confidence="medium",
            wins_frac=1 - LEFT,
            saving=fewer(rows, LEFT),
        )
    ]
