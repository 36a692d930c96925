# SPDX-License-Identifier: Apache-2.0
"""Does a kernel launch so few threads that most of the GPU has no work?

Occupancy does not show it: it counts the SMs that have work. An L4 holds some 90,000 threads, an H200
270,000.
"""

from __future__ import annotations

from profiling_lab.analysis.ncu.counted import Counted
from profiling_lab.rules.counters.fault import ROOF, SHARE, Fault, Unknown, of_each_kernel
from profiling_lab.rules.finding import Threshold
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

THREADS = Threshold("threads", "few", 40_000, "threads in a launch, below", "ours: half of what an L4 holds")


def judge(view: View, kernel: Counted) -> Fault | Unknown | None:
    on_the_roof = kernel.dram_frac is not None and kernel.dram_frac >= view[ROOF]
    if kernel.threads >= view[THREADS] or on_the_roof:
        return None
    return Fault(
        f" launches {kernel.threads:,} threads in {kernel.launches[0].blocks:,} blocks: "
        "most of the GPU has no work",
        1 - kernel.threads / view[THREADS],
        "give it more blocks: split the work of a block, and combine the parts in a second kernel",
    )


RULE = Rule(
    "few_threads",
    "Does a kernel leave most of the GPU without work?",
    (THREADS, SHARE, ROOF),
    of_each_kernel(judge),
    __doc__ or "",
    time=Time.BUSY,
)
