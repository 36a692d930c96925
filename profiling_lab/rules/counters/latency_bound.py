# SPDX-License-Identifier: Apache-2.0
"""Is nothing of the GPU busy while a kernel runs, and what do its warps wait for?

It is a symptom: where another rule says why, it is listed there. The longest stall names the wait, in cycles
for each issued instruction.
"""

from __future__ import annotations

from profiling_lab.analysis.ncu.counted import DRAM_RATE, ISSUED, Counted
from profiling_lab.rules.counters.fault import SHARE, Fault, Unknown, of_each_kernel
from profiling_lab.rules.finding import Threshold, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View

IDLE = Threshold("idle", "idle", 0.4, "of instructions, of device memory and of float32, each below", "ours")
REMEDIES = {
    "long_scoreboard": "more loads under way in each thread, prefetching, or more warps",
    "short_scoreboard": "fewer accesses to shared memory and fewer special functions, or independent ones",
    "mio_throttle": "fewer and wider accesses to shared memory",
    "lg_throttle": "fewer and wider global accesses: 16 bytes a thread",
    "wait": "independent instructions: several accumulators, unrolling",
    "barrier": "fewer barriers, and equal work for the warps of a block",
    "math_pipe_throttle": "another mix of instructions, or smaller types",
}


def judge(view: View, kernel: Counted) -> Fault | Unknown | None:
    issued, dram = kernel.issued_frac, kernel.dram_frac
    if issued is None or dram is None:
        return Unknown(f"{ISSUED},{DRAM_RATE}")
    busiest = max(issued, dram, kernel.fp32_frac or 0.0)
    if busiest >= view[IDLE]:
        return None
    stall, cycles = kernel.figures.stalls[0] if kernel.figures.stalls else ("", 0.0)
    waits = f"; its warps wait for {stall}, {cycles:.1f} cycles an instruction" if stall else ""
    return Fault(
        f" issues in {percent(issued)} of the cycles and uses {percent(dram)} of device memory{waits}",
        1 - busiest,
        REMEDIES.get(stall, "more independent work: more warps, or more of it in each thread"),
    )


RULE = Rule(
    "latency_bound",
    "Is nothing of the GPU busy while a kernel runs?",
    (IDLE, SHARE),
    of_each_kernel(judge),
    __doc__ or "",
    time=Time.BUSY,
    symptom=True,
    wins_frac=0.5,
)
