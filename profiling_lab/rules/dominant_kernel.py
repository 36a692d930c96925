# SPDX-License-Identifier: Apache-2.0
"""Does one kernel take so large a share of the GPU time that it should be optimised first?

Kernels with the same name count together. The cost is all of their time, which is the most that optimising
them can save. Below twenty kernels some kernel always has a large share, so the rule abstains.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import LONGER, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import FUSED_ATTENTION, MEMORY_BOUND, NO_TENSOR_CORES, TENSOR_CORES
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.small_grids import FILLED, MORE_BLOCKS, small_grids
from profiling_lab.rules.view import View
from profiling_lab.trace.operation_classes import OperationClass

SHARE = Threshold("share", "one kernel takes", 0.3, "of the GPU time, at least", "nsys-ai: top kernel")
HOT = Threshold("hot", "called a hot spot", 0.6, "of the GPU time, from", "nsys-ai: hot spot")
ENOUGH = Threshold(
    "enough", "kernels needed to compare shares", 20, "at least", "ours: with fewer, one always leads"
)
OTHERWISE = "optimise this kernel first: a better algorithm, a fused kernel or a library kernel"
OF_COMMUNICATION = (
    "communicate less, or overlap it with compute (see communication); if the kernel only waits for a "
    "straggler, find the late rank: `profiling-lab ranks` over the traces of all ranks"
)
# The first family whose names match decides.
_FUSED = (
    "it is fused and uses tensor cores already: reduce the work (causal or sliding masks, shorter or packed "
    "sequences), or use a newer backend (cuDNN, FlashAttention-3)"
)
OF_FAMILIES = (
    (FUSED_ATTENTION, _FUSED),
    (NO_TENSOR_CORES, "use tensor cores (see tensor_cores): bf16, fp16 or TF32"),
    (
        TENSOR_CORES,
        "it uses tensor cores already: sizes in multiples of 64 or 128, larger batches, smaller types "
        "(fp8), or fewer matrix multiplications",
    ),
    (MEMORY_BOUND, "it is memory-bound: fuse it with the operations around it (torch.compile)"),
)


def check(view: View) -> RuleResult:
    operations = view.operations
    rows = np.flatnonzero(view.kernels)
    if len(rows) < view[ENOUGH]:
        return Abstain(f"{len(rows)} kernels are too few to compare shares", LONGER)
    number = {name: i for i, name in enumerate(dict.fromkeys(operations.names))}
    of_name = np.array([number[name] for name in operations.names], dtype=np.int32)
    totals = np.zeros(len(number), dtype=np.int64)
    np.add.at(totals, of_name[operations.name[rows]], operations.duration_ns[rows])
    top = int(totals.argmax())
    share = totals[top] / view.gpu_ns
    if share < view[SHARE]:
        return ()
    mine = rows[of_name[operations.name[rows]] == top]
    duration = operations.duration_ns[mine]
    name = operations.short_names[operations.name[mine[0]]]
    return [
        view.finding(
            what=f"the kernel {name} takes {percent(share)} of the GPU time"
            f"{', a hot spot' if share >= view[HOT] else ''}: {len(mine):,} launches, "
            f"{ms(float(duration.mean()))} on average",
            cost_ns=gpu_time(view, mine),
            cost_of="GPU time of the kernel",
            place=view.hottest_line(mine, duration),
            rows=mine,
            weight=duration,
            remedy=_remedy(view, int(mine[0])),
            saving=shorter(mine, 0.0),
        )
    ]


def _remedy(view: View, row: int) -> str:
    if view.classes[row] == OperationClass.COMMUNICATION:
        return OF_COMMUNICATION
    name = view.operations.names[view.operations.name[row]].lower()
    of_family = next((remedy for family, remedy in OF_FAMILIES if re.search(family, name)), OTHERWISE)
    return MORE_BLOCKS if small_grids(view)[row] else of_family


RULE = Rule(
    "dominant_kernel",
    "Does one kernel dominate the GPU's time?",
    (SHARE, HOT, ENOUGH, FILLED),
    check,
    __doc__ or "",
    time=Time.BUSY,
    symptom=True,
    wins_frac=0.3,
)
