# SPDX-License-Identifier: Apache-2.0
"""Do few of a warp's 32 threads take part in an instruction, because they went different ways?

An `if` of a few instructions seldom does that; loops of different length do.
"""

from __future__ import annotations

from profiling_lab.analysis.ncu.counted import THREADS, Counted
from profiling_lab.rules.counters.fault import SHARE, Fault, Unknown, of_each_kernel
from profiling_lab.rules.finding import Threshold
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

ACTIVE = Threshold(
    "active", "divergent", 16, "threads of 32 in an instruction, below", "ours: half of a warp"
)
WARP = 32


def judge(view: View, kernel: Counted) -> Fault | Unknown | None:
    active = kernel.threads_per_instruction
    if active is None:
        return Unknown(THREADS)
    if active >= view[ACTIVE]:
        return None
    return Fault(
        f" executes an instruction with {active:.1f} of {WARP} threads of a warp: they diverge",
        1 - active / WARP,
        "give the threads of a warp work of the same length: sort or group the items by it",
    )


RULE = Rule(
    "divergence",
    "Do the threads of a warp go different ways?",
    (ACTIVE, SHARE),
    of_each_kernel(judge),
    __doc__ or "",
    time=Time.BUSY,
)
