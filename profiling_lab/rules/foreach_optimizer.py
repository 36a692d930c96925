# SPDX-License-Identifier: Apache-2.0
"""Does an optimizer go through its parameters in several passes, where one would do?

Without fused=True torch's Adam, AdamW and SGD update all parameters at once, but pass by pass: one kernel
decays, the next one adds, another one divides. Each pass reads and writes whole arrays, so their number is
what an update costs. A name of these kernels tells how many arrays its pass reads, and it writes one. A fused
update reads each of its arrays once, and writes all but the gradient: seven passes over an array for Adam,
five for SGD with momentum. How long one takes is known from the passes that there are.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import OF_MANY_TENSORS
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "the optimizer takes", 0.05, "of the GPU time, at least", "ours: as medium")
READS = re.compile(r"Functor<[\w:]+, \d+, (\d+), \d+>")
"""its type, the lists of tensors, those that are read, and the place of the one that is written"""
FUSED_ARRAYS = {"_multi_tensor_adam": 7, "_multi_tensor_adamw": 7, "_multi_tensor_sgd": 5}
"""reads and writes of an array by one fused update: the parameter, its gradient, and its state"""
LEAST_FRAC = 0.1
"""of the longest pass, that one over parameters takes at least"""
REMEDY = "fused=True: one kernel reads and writes everything once"


def check(view: View) -> RuleResult:
    found, duration, stacks = view.attribution, view.operations.duration_ns, view.trace.stacks
    passes = view.kernels_named(OF_MANY_TENSORS)
    if len(stacks) == 1:
        return Abstain("the trace has no Python stacks", STACKS)
    arrays = _arrays(view)
    findings = []
    for function, fused_arrays in FUSED_ARRAYS.items():
        inside = stacks.nearest(lambda frame, name=function: frame.function == name)  # type: ignore[misc]
        rows = np.flatnonzero(passes & (inside[found.stack] > 0))
        for _, mine in grouped(rows, view.operation_place[rows]):
            number = _passes(view, mine, arrays)
            total_ns, left = int(duration[mine].sum()), fused_arrays / max(sum(number), 1)
            if left >= 1 or total_ns < view[SHARE] * view.gpu_ns:
                continue
            findings.append(
                view.finding(
                    f"the optimizer updates its parameters in {len(number)} passes, which read or write "
                    f"{sum(number)} arrays where a fused one needs {fused_arrays}: {ms(total_ns)}, "
                    f"{percent(total_ns / view.gpu_ns)} of the GPU time",
                    cost_ns=gpu_time(view, mine),
                    cost_of="GPU time of these passes",
                    place=view.hottest_line(mine, duration[mine]),
                    rows=mine,
                    weight=duration[mine],
                    remedy=REMEDY,
                    wins_frac=1 - left,
                    saving=fewer(mine, left),
                )
            )
    return findings


def _passes(view: View, rows: I64, arrays: I64) -> list[int]:
    """How many arrays each pass reads and writes. Each is a line of the function; one over numbers alone,
    such as counts of steps, takes next to no time.
    """
    line = view.trace.stacks.frame[view.attribution.stack[rows]]
    of_line = [
        (int(view.operations.duration_ns[its].sum()), int(arrays[its].max()))
        for _, its in grouped(rows, line)
    ]
    least_ns = LEAST_FRAC * max((took_ns for took_ns, _ in of_line), default=0)
    return [number for took_ns, number in of_line if took_ns >= least_ns]


def _arrays(view: View) -> I64:
    """Per operation how many arrays it reads and writes, 0 unknown."""
    reads = [READS.search(name) for name in view.operations.names]
    return np.array([*(int(hit[1]) + 1 if hit else 0 for hit in reads), 0])[view.operations.name]


RULE = Rule(
    "foreach_optimizer",
    "Does an optimizer go through its parameters in several passes?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
