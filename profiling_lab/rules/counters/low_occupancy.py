# SPDX-License-Identifier: Apache-2.0
"""Does the launch allow few warps on an SM, and does that hold the kernel up?

Few warps alone are no fault: a kernel whose schedulers have something to issue, or which moves bytes at the
rate of device memory, needs no more. Where neither is known, the rule cannot tell.
"""

from __future__ import annotations

from profiling_lab.analysis.ncu.consistency import THEORETICAL
from profiling_lab.analysis.ncu.counted import DRAM_RATE, ISSUED, Counted
from profiling_lab.rules.counters.fault import (
    ISSUES,
    ROOF,
    SHARE,
    Fault,
    Unknown,
    is_unhindered,
    of_each_kernel,
)
from profiling_lab.rules.finding import Threshold, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

WARPS = Threshold("warps", "low", 0.5, "of the warps of an SM, up to", "the guide: half is often enough")
_OTHERWISE = "lower what limits the blocks on an SM: see ncu's section Occupancy"
_REMEDY = {  # of several limits, the first
    "blocks": "use larger blocks: an SM holds a fixed number of them, however small",
    "shared memory": "ask for less shared memory: as much as this call uses, smaller tiles, or smaller types",
    "registers": "use fewer registers: __launch_bounds__, smaller tiles in registers, less unrolling",
}


def judge(view: View, kernel: Counted) -> Fault | Unknown | None:
    allowed, limit = kernel.figures.occupancy_limit_frac, kernel.figures.occupancy_limited_by
    if allowed is None:
        return Unknown(THEORETICAL)
    if allowed > view[WARPS]:
        return None
    if kernel.issued_frac is None and kernel.dram_frac is None:
        return Unknown(f"{ISSUED},{DRAM_RATE}")
    if is_unhindered(view, kernel):
        return None
    because = f", because of {limit}" if limit else ""
    return Fault(
        f" can have {percent(allowed)} of the warps of an SM{because}, and its schedulers wait",
        1 - allowed,
        next((_REMEDY[word] for word in _REMEDY if word in limit), _OTHERWISE),
    )


RULE = Rule(
    "low_occupancy",
    "Do too few warps fit on an SM, and what limits them?",
    (WARPS, SHARE, ROOF, ISSUES),
    of_each_kernel(judge),
    __doc__ or "",
    time=Time.BUSY,
)
