# SPDX-License-Identifier: Apache-2.0
"""Grade E34. The right answers are computed from the learner's own recording and report."""

from __future__ import annotations

from profiling_lab.analysis.ncu.consistency import ACHIEVED, LIMITS, THEORETICAL
from profiling_lab.analysis.ncu.report import Launch
from profiling_lab.exercises.attention_kernels import Number, Part, exercise, metric
from profiling_lab.exercises.e34_low_occupancy import repair
from profiling_lab.exercises.exercise import Mistake

SHARED, BY_SHARED, BY_REGISTERS = (
    "launch__shared_mem_per_block",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_registers",
)


def limited_by_shared_memory(launch: Launch) -> bool:
    limits = [launch.value(name) for name in LIMITS]
    return launch.value(BY_SHARED) == min(limits) and launch.value(THEORETICAL) < 30


PART = Part(
    section="finding",
    kernel="attend_kernel",
    cause="low occupancy",
    lines=("const size_t bytes = (kThreads", "float4* scores = dynamic + kThreads"),
    numbers=(
        Number("theoretical", f"theoretical occupancy in per cent: {THEORETICAL}", metric(THEORETICAL)),
        Number("achieved", f"achieved occupancy in per cent: {ACHIEVED}", metric(ACHIEVED)),
        Number("shared", f"bytes of shared memory of a block: {SHARED}", metric(SHARED)),
        Number(
            "registers", f"blocks that the registers of an SM allow: {BY_REGISTERS}", metric(BY_REGISTERS)
        ),
    ),
    shows=limited_by_shared_memory,
)

EXERCISE = exercise(
    "low-occupancy",
    "Why are so few warps resident, and does it matter?",
    (PART,),
    repair.__name__,
    rules=("low_occupancy",),
    mistakes=(
        Mistake("a kernel of another library", {"finding.kernel": "flash_fwd_kernel"}, "kernel"),
        Mistake("half of the time", {"finding.share": 50.0}, "share"),
        Mistake("a grid that is too small", {"finding.cause": "too few blocks"}, "cause"),
        Mistake("registers", {"finding.cause": "register spills"}, "cause"),
        Mistake("where the values are read", {"finding.line": 101}, "line"),
        Mistake("what the registers allow", {"finding.theoretical": 62.5}, "theoretical"),
        Mistake("a fraction instead of a percentage", {"finding.theoretical": 0.125}, "theoretical"),
        Mistake("what is achieved in a good kernel", {"finding.achieved": 48.0}, "achieved"),
        Mistake("the static part alone", {"finding.shared": 1024.0}, "shared"),
        Mistake("one block", {"finding.registers": 1.0}, "registers"),
    ),
)
