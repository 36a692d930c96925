# SPDX-License-Identifier: Apache-2.0
"""Grade E33. The right answers are computed from the learner's own recording and report."""

from __future__ import annotations

from profiling_lab.analysis.ncu.consistency import SECTORS_PER_REQUEST
from profiling_lab.exercises.attention_kernels import Number, Part, exercise, metric
from profiling_lab.exercises.e33_low_memory_throughput import repair
from profiling_lab.exercises.exercise import Mistake

USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"

PART = Part(
    section="finding",
    kernel="scores_kernel",
    cause="uncoalesced loads",
    lines=("sum += query[i] * own[i];", "const float* own = keys"),
    numbers=(
        Number(
            "sectors",
            f"sectors for each request of a load: {SECTORS_PER_REQUEST}",
            metric(SECTORS_PER_REQUEST),
        ),
        Number("used", f"bytes used of each sector, in per cent: {USED}", metric(USED)),
        Number("dram", f"throughput of device memory in per cent of its peak: {DRAM}", metric(DRAM)),
    ),
    shows=lambda launch: launch.value(SECTORS_PER_REQUEST) > 16,
)

EXERCISE = exercise(
    "low-memory-throughput",
    "Why does a kernel that only reads memory not use its bandwidth?",
    (PART,),
    repair.__name__,
    rules=("uncoalesced",),
    mistakes=(
        Mistake("a kernel that reads as much", {"finding.kernel": "mix_kernel"}, "kernel"),
        Mistake("a kernel that does not exist", {"finding.kernel": "flash_fwd_kernel"}, "kernel"),
        Mistake("another kernel's share", {"finding.share": 3.0}, "share"),
        Mistake("few threads", {"finding.cause": "low occupancy"}, "cause"),
        Mistake("a cause that does not exist", {"finding.cause": "slow memory"}, "cause"),
        Mistake("the loop over keys of the other kernel", {"finding.line": 73}, "line"),
        Mistake("the ideal of a 4-byte load", {"finding.sectors": 4.0}, "sectors"),
        Mistake("the ideal", {"finding.used": 100.0}, "used"),
        Mistake("a fraction instead of a percentage", {"finding.used": 0.125}, "used"),
        Mistake("the throughput of a good kernel", {"finding.dram": 90.0}, "dram"),
    ),
)
