# SPDX-License-Identifier: Apache-2.0
"""Does one kernel take so much of the GPU's time that nothing else is worth looking at first?

Kernels are one by name. The cost is all its time: what it could at most be made to save. Fewer than twenty
kernels always have one that leads, and tell nothing.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import LONGER, Abstain, Threshold, Verdict, ms, percent
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View

SHARE = Threshold("share", "one kernel takes", 0.3, "of the GPU time, at least", "nsys-ai: top kernel")
HOT = Threshold("hot", "called a hot spot", 0.6, "of the GPU time, from", "nsys-ai: hot spot")
ENOUGH = Threshold(
    "enough", "kernels to speak of shares", 20, "at least", "ours: fewer always have one that leads"
)
REMEDY = "optimise this kernel first: a better algorithm, tensor cores, a fused or a library kernel"


def check(view: View) -> Verdict:
    operations = view.operations
    rows = np.flatnonzero(view.kernels)
    if len(rows) < view[ENOUGH]:
        return Abstain(f"{len(rows)} kernels are too few to speak of shares", LONGER)
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
            remedy=REMEDY,
        )
    ]


RULE = Rule(
    "dominant_kernel", "Does one kernel dominate the GPU's time?", (SHARE, HOT, ENOUGH), check, __doc__ or ""
)
