# SPDX-License-Identifier: Apache-2.0
"""Does every thread make an atomic of its own? Those on one address run one after the other.

Only atomics whose result is not used are counted, as in a sum. A kernel that is busy otherwise, with
instructions or device memory, is not held up by them.
"""

from __future__ import annotations

from profiling_lab.analysis.ncu.counted import REDUCTIONS, Counted
from profiling_lab.rules.counters.fault import (
    ISSUES,
    ROOF,
    SHARE,
    Fault,
    Unknown,
    is_unhindered,
    of_each_kernel,
)
from profiling_lab.rules.finding import Threshold
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

EACH = Threshold("each", "many", 0.5, "atomics for each thread, from", "ours: a warp would need 1/32 of them")


def judge(view: View, kernel: Counted) -> Fault | Unknown | None:
    each = kernel.reductions_per_thread
    if each is None:
        return Unknown(REDUCTIONS)
    if each < view[EACH] or is_unhindered(view, kernel):
        return None
    return Fault(
        f" makes {each:.1f} atomics for each thread, and neither instructions nor memory keep it busy",
        1.0,
        "sum within the warp (shuffles) and the block (shared memory) first: one atomic for each block",
    )


RULE = Rule(
    "serial_atomics",
    "Do atomics wait for one another?",
    (EACH, SHARE, ROOF, ISSUES),
    of_each_kernel(judge),
    __doc__ or "",
    time=Time.BUSY,
)
