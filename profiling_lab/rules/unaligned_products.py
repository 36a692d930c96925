# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplications of 16-bit elements whose rows do not begin at multiples of 16 bytes.

A second finding of `tensor_cores`. Libraries put into the name of a kernel how many elements it loads at once
(`align2`, `ldg4`). Eight elements of 16 bits are 16 bytes, which wide loads and Hopper's copy engine need.
Fewer at a time are loaded by kernels of an older generation.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Finding, ms, percent, where
from profiling_lab.rules.view import Mask, View

UNALIGNED = r"(bf16|fp?16|_h\d+)\w*gemm\w*_(align|ldg)[124](?!\d)"
WINS_FRAC = 0.75
"""NVIDIA's guide on matrix multiplications: two to four times slower; Hopper's own are faster still"""
REMEDY = "pad the sizes to multiples of 8, such as a vocabulary of 50257 words to 50304"


def unaligned_products(view: View, products: Mask, least_ns: float) -> list[Finding]:
    """Nothing if they take less than `least_ns`."""
    rows = np.flatnonzero(products & view.kernels_named(UNALIGNED))
    duration = view.operations.duration_ns[rows]
    total_ns = int(duration.sum())
    if not len(rows) or total_ns < least_ns:
        return []
    place = view.hottest_line(rows, duration)
    return [
        view.finding(
            f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, are matrix multiplications "
            f"of unaligned rows, {len(rows):,} kernels{where(place, ', most of it on this line')}",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of these kernels",
            place=place,
            rows=rows,
            weight=duration,
            remedy=REMEDY,
            confidence="medium",
            wins_frac=WINS_FRAC,
            saving=shorter(rows, 1 - WINS_FRAC),
        )
    ]
