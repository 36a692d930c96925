# SPDX-License-Identifier: Apache-2.0
"""Grade E35. The right answers are computed from the learner's own recording and report."""

from __future__ import annotations

from profiling_lab.analysis.ncu.report import Launch
from profiling_lab.exercises.attention_kernels import Number, Part, exercise, metric
from profiling_lab.exercises.e35_long_kernel import repair
from profiling_lab.exercises.exercise import Mistake

ACTIVE, ELAPSED = "sm__cycles_active.avg", "sm__cycles_elapsed.avg"
SMS = "device__attribute_multiprocessor_count"
REDUCTIONS, INSTRUCTIONS = "smsp__inst_executed_op_global_red.sum", "smsp__inst_executed.sum"


def busy_pct(launch: Launch) -> float:
    return 100 * launch.value(ACTIVE) / launch.value(ELAPSED)


PARTS = (
    Part(
        section="attend",
        kernel="attend_kernel",
        cause="too few blocks",
        lines=("attend_kernel<<<heads, kThreads>>>", "const int head = blockIdx.x, lane"),
        numbers=(
            Number(
                "blocks",
                "blocks of its grid: launch__grid_size",
                lambda launch: float(launch.blocks),
                slack_frac=0.0,
            ),
            Number("busy", f"100 times {ACTIVE} over {ELAPSED}", busy_pct, slack=1.0),
        ),
        shows=lambda launch: launch.blocks < launch.value(SMS),
    ),
    Part(
        section="entropy",
        kernel="entropy_kernel",
        cause="serialised atomics",
        lines=("atomicAdd(&entropy[head]",),
        numbers=(Number("reductions", f"reductions of all warps: {REDUCTIONS}", metric(REDUCTIONS)),),
        shows=lambda launch: launch.value(REDUCTIONS) > 0.9 * launch.blocks * launch.threads / 32,
    ),
    Part(
        section="pages",
        kernel="pages_kernel",
        cause="allocation in the kernel",
        lines=("malloc(4 * sizeof(float))", "free(of_quarter)"),
        numbers=(Number("instructions", f"instructions of all warps: {INSTRUCTIONS}", metric(INSTRUCTIONS)),),
        shows=lambda launch: launch.value(INSTRUCTIONS) > 1000 * launch.blocks * launch.threads / 32,
    ),
)

EXERCISE = exercise(
    "long-kernel",
    "Why does a kernel take ten times as long as its bytes need?",
    PARTS,
    repair.__name__,
    rules=("serial_atomics", "few_threads"),
    mistakes=(
        Mistake("another kernel", {"attend.kernel": "pages_kernel"}, "attend kernel"),
        Mistake("a kernel that does not exist", {"entropy.kernel": "reduce_kernel"}, "entropy kernel"),
        Mistake("all of the time", {"attend.share": 100.0}, "attend share"),
        Mistake("few warps on each SM", {"attend.cause": "low occupancy"}, "attend cause"),
        Mistake("the exponential", {"entropy.cause": "divergent branches"}, "entropy cause"),
        Mistake("the loop", {"pages.cause": "uncoalesced loads"}, "pages cause"),
        Mistake("the number of SMs", {"attend.blocks": 132}, "attend blocks"),
        Mistake("every SM is busy", {"attend.busy": 99.0}, "attend busy"),
        Mistake("reductions of all threads", {"entropy.reductions": 2097152}, "entropy reductions"),
        Mistake("the launch instead of the atomic", {"entropy.line": 139}, "entropy line"),
        Mistake("the loop instead of the allocation", {"pages.line": 118}, "pages line"),
    ),
)
