# SPDX-License-Identifier: Apache-2.0
"""Do the threads of a warp load from far apart, so that a request touches more sectors than it needs?

The widest load of 32 neighbouring threads, 16 bytes each, touches 16 sectors of 32 bytes. More are never
coalesced. Where the report says how much of each sector is used, that decides instead. A kernel on the roof
of device memory is left to `on_the_roof`: there the layout costs bytes, not requests.
"""

from __future__ import annotations

from profiling_lab.analysis.ncu.consistency import LOADS
from profiling_lab.analysis.ncu.counted import Counted
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

SECTORS = Threshold(
    "sectors", "uncoalesced", 16.5, "sectors for each load of a warp, from", "16 bytes a thread"
)
USED = Threshold("used", "scattered, if less is used than", 0.5, "of each sector", "ours: half is wasted")
NEEDED = 4
"""sectors for 32 neighbouring floats"""


def judge(view: View, kernel: Counted) -> Fault | Unknown | None:
    sectors, used = kernel.sectors_per_load, kernel.sector_use_frac
    if sectors is None:
        return Unknown(",".join(LOADS))
    is_scattered = sectors >= view[SECTORS] if used is None else used < view[USED] and sectors > NEEDED
    if not is_scattered or is_unhindered(view, kernel):
        return None
    waste = 1 - (NEEDED / sectors if used is None else used)
    more = "" if used is None else f", of which {percent(used)} are used"
    return Fault(
        f" touches {sectors:.1f} sectors with each load of a warp{more}; neighbouring floats need {NEEDED}",
        waste,
        "let neighbouring threads read neighbouring addresses: change which thread does what, or the "
        "layout, or go through shared memory",
    )


RULE = Rule(
    "uncoalesced",
    "Are global loads spread over more sectors than they need?",
    (SECTORS, USED, SHARE, ROOF, ISSUES),
    of_each_kernel(judge),
    __doc__ or "",
    time=Time.BUSY,
)
