# SPDX-License-Identifier: Apache-2.0
"""Does one kernel take so much of the GPU's time that nothing else is worth looking at first?"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.rule import Abstain, Finding, Rule, Threshold, Verdict, ms, percent
from profiling_lab.rules.view import View

SHARE = Threshold("one kernel takes", 0.3, "of the GPU time, at least", "nsys-ai: top kernel")
HOT = Threshold("called a hot spot", 0.6, "of the GPU time, from", "nsys-ai: hot spot")
ENOUGH = Threshold("kernels to speak of shares", 20, "at least", "ours: fewer always have one that leads")
REMEDY = "optimise this kernel first: a better algorithm, tensor cores, a fused or a library kernel"


def check(view: View) -> Verdict:
    operations = view.operations
    rows = np.flatnonzero(view.kernels)
    if len(rows) < ENOUGH.value:
        return Abstain(f"{len(rows)} kernels are too few to speak of shares")
    number = {name: i for i, name in enumerate(dict.fromkeys(operations.names))}
    of_name = np.array([number[name] for name in operations.names], dtype=np.int32)
    totals = np.zeros(len(number), dtype=np.int64)
    np.add.at(totals, of_name[operations.name[rows]], operations.duration_ns[rows])
    top = int(totals.argmax())
    share = totals[top] / view.gpu_ns
    if share < SHARE.value:
        return ()
    mine = rows[of_name[operations.name[rows]] == top]
    duration = operations.duration_ns[mine]
    name = operations.short_names[operations.name[mine[0]]]
    return [
        Finding(
            what=f"the kernel {name} takes {percent(share)} of the GPU time"
            f"{', a hot spot' if share >= HOT.value else ''}: {len(mine):,} launches, "
            f"{ms(float(duration.mean()))} on average",
            cost_ns=int(totals[top]),
            cost_of="GPU time of the kernel",
            place=view.dearest_place(mine, duration),
            evidence=view.evidence("operations", mine, duration),
            events=len(mine),
            remedy=REMEDY,
        )
    ]


RULE = Rule("dominant_kernel", "Does one kernel dominate the GPU's time?", (SHARE, HOT, ENOUGH), check)
