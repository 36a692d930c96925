# SPDX-License-Identifier: Apache-2.0
"""How much of the GPU time is spent in memory-bound kernels? Fused kernels read and write memory only once.

Elementwise operations, activations, normalisations, softmax, reductions, dropout and copies do a few
operations per element. Memory bandwidth limits them on every GPU, and each one reads what the one before
wrote. They are recognised by name. A kernel with blocks for a few SMs only is not one of them: so few cannot
use the bandwidth, and fusing it would leave its grid as small. Nor is one that ends as soon as it has begun:
what limits that is its launch (see `tiny_kernels`). Kernels that only change a layout or a dtype are left to
`layout_copies` and `dtype_casts`, but casts and copies among elementwise kernels of one function fuse with
them (see chains.py). The cost is all of their time. Fusion saves part of it where kernels follow each other
on a stream with no other work in between: of such a chain the longest remains, because one has to read and
write. Kernels of a foreach or fused optimizer have tensors of their own, so they form no chain. Every network
has such kernels, so the severity is at most medium.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.rules.chains import fusible, within_chains
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent, where
from profiling_lab.rules.kernel_families import (
    KNOWN,
    MATRIX,
    MEMORY_BOUND,
    REARRANGING,
    names_tell_little,
)
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.small_grids import FILLED, small_grids
from profiling_lab.rules.view import View

SHARE = Threshold("share", "memory-bound kernels", 0.3, "of the GPU time, from", "ours: worth fusing")
SHORT = Threshold(
    "short", "kernels that start and end", 4_000, "ns, less than", "ours: an empty one takes 1-2 µs"
)
REMEDY = "fuse them: torch.compile, or a fused op (layer_norm_gelu, a fused optimizer, SDPA)"


def check(view: View) -> RuleResult:
    duration = view.operations.duration_ns
    memory = view.kernels_named(MEMORY_BOUND) & ~view.kernels_named(MATRIX) & ~view.kernels_named(REARRANGING)
    memory &= ~small_grids(view)
    memory |= within_chains(view)
    long = duration >= view[SHORT]
    rows = np.flatnonzero(memory & long)
    total_ns = int(duration[rows].sum())
    if not total_ns or total_ns < view[SHARE] * view.gpu_ns:
        return names_tell_little(view) or ()
    place, fused = view.hottest_line(rows, duration[rows]), fusible(view, memory)
    fused = fused[long[fused]]
    return [
        view.finding(
            f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, are spent in "
            f"{len(rows):,} memory-bound kernels{where(place, ', most of it on this line')}",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of memory-bound kernels",
            place=place,
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            confidence="medium",
            wins_frac=int(duration[fused].sum()) / total_ns,
            saving=fewer(fused),
        )
    ]


RULE = Rule(
    "memory_bound",
    "How much time do memory-bound kernels take?",
    (SHARE, FILLED, SHORT, KNOWN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    generic=True,
    severity_at_most="medium",
)
