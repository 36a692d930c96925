# SPDX-License-Identifier: Apache-2.0
"""Does a kernel reach the rate of device memory, or of float32? Then stop: it cannot become much faster.

It costs nothing by itself. What is left is to move or compute less. Where a load touches more sectors than
it needs, part of what moves is not used: there another layout helps.
"""

from __future__ import annotations

from profiling_lab.analysis.ncu.counted import DRAM_RATE, Counted
from profiling_lab.rules.counters.fault import ROOF, SHARE, Fault, Unknown, of_each_kernel
from profiling_lab.rules.counters.uncoalesced import NEEDED, SECTORS
from profiling_lab.rules.finding import percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View


def judge(view: View, kernel: Counted) -> Fault | Unknown | None:
    dram, fp32, sectors = kernel.dram_frac, kernel.fp32_frac, kernel.sectors_per_load
    if dram is None and fp32 is None:
        return Unknown(DRAM_RATE)
    if dram is not None and dram >= view[ROOF]:
        if sectors is not None and sectors >= view[SECTORS]:
            return Fault(
                f" moves {percent(dram)} of what device memory can, "
                f"with {sectors:.1f} sectors for each load: bytes that it does not use",
                max(1 - NEEDED / sectors, 0.0),
                "lay out the values that are read together next to one another (a structure of arrays)",
            )
        return Fault(
            f" moves {percent(dram)} of what device memory can: it is on the roof",
            0.0,
            "stop here; only fewer bytes make it faster: fuse it with its neighbours, or use a smaller type",
        )
    if fp32 is not None and fp32 >= view[ROOF]:
        return Fault(
            f" computes at {percent(fp32)} of the rate of float32: it is on the roof",
            0.0,
            "stop here; only less arithmetic or tensor cores make it faster",
        )
    return None


RULE = Rule(
    "on_the_roof",
    "Is a kernel as fast as the GPU allows?",
    (SECTORS, ROOF, SHARE),
    of_each_kernel(judge),
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
