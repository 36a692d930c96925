# SPDX-License-Identifier: Apache-2.0
"""Do the threads of a warp read different words of one bank of shared memory, so that a load takes several
passes? One pass for each load is ideal; loads of 8 and 16 bytes a thread take two and four without conflict.
"""

from __future__ import annotations

from profiling_lab.analysis.ncu.counted import SHARED_LOADS, WAVEFRONTS, Counted
from profiling_lab.rules.counters.fault import SHARE, Fault, Unknown, of_each_kernel
from profiling_lab.rules.finding import Threshold
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

PASSES = Threshold("passes", "conflicts", 4.5, "passes for each load, from", "16 bytes a thread take 4")


def judge(view: View, kernel: Counted) -> Fault | Unknown | None:
    passes = kernel.passes_per_shared_load
    if passes is None:
        has_none = any(each.metrics.get(name) == 0 for each in kernel.launches for name in SHARED_LOADS)
        return None if has_none else Unknown(f"{WAVEFRONTS},{SHARED_LOADS[0]}")
    if passes < view[PASSES]:
        return None
    return Fault(
        f" needs {passes:.1f} passes through shared memory for each load of a warp: bank conflicts",
        1 - 1 / passes,
        "pad the rows of the tile by one word, or permute its columns: a warp's words in 32 banks",
    )


RULE = Rule(
    "bank_conflicts",
    "Do loads from shared memory conflict?",
    (PASSES, SHARE),
    of_each_kernel(judge),
    __doc__ or "",
    time=Time.BUSY,
)
