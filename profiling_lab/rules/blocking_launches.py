# SPDX-License-Identifier: Apache-2.0
"""Do launch calls return only when their kernel has ended? Then the host never works ahead of the GPU.

With CUDA_LAUNCH_BLOCKING=1 every launch waits for its kernel, so that an error is reported at the line that
caused it. It is often left on after the search. A debugger, or a profiler that runs one kernel at a time,
does the same. The GPU then has nothing to do from the end of each kernel until the next launch. Ordinary
calls return in a few microseconds, so kernels that take longer tell: hardly any ends within its call, and
with blocking launches nearly all do. Launches of CUDA graphs do not count. The cost is the time for which
the calls waited, at most the GPU's idle time.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.analysis.host.blocking_launches import (
    ENOUGH_LONG,
    LONG_NS,
    NEARLY_ALL_FRAC,
    ends_in_its_call,
)
from profiling_lab.rules.costs import within_recording
from profiling_lab.rules.finding import LONGER, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import unique

LONG = Threshold("long", "kernels that outlast an ordinary launch call", LONG_NS, "ns, from", "ours")
ALL = Threshold("all", "of these end within their call", NEARLY_ALL_FRAC, "of them, from", "ours: nearly all")
ENOUGH = Threshold("enough", "kernels of this length", ENOUGH_LONG, "at least", "ours")
REMEDY = (
    "unset CUDA_LAUNCH_BLOCKING: it is for finding the line of an error; else run without the debugger or "
    "other tool that lets one kernel run at a time"
)


def check(view: View) -> RuleResult:
    if (unknown := view.too_few_calls(view.kernels, "kernels")) is not None:
        return unknown
    operations, calls, call = view.operations, view.calls, view.attribution.call
    findings, short = [], 0
    rows, ends = ends_in_its_call(view.trace)
    long = operations.duration_ns[rows] >= view[LONG]
    for process in unique(operations.process[rows]).tolist():
        mine = operations.process[rows] == process
        within = ends & mine
        if (mine & long).sum() < view[ENOUGH]:
            short += int(within.sum() >= max(view[ALL] * mine.sum(), view[ENOUGH]))
            continue
        if (within & long).sum() < max(view[ALL] * (mine & long).sum(), 1):
            continue
        kernels = rows[within]
        start_ns, end_ns = operations.start_ns[kernels], calls.end_ns[call[kernels]]
        idle_ns = view.processes[process].idle_ns
        waited_ns = within_recording(view, start_ns, end_ns)
        findings.append(
            view.finding(
                f"{percent(within.sum() / mine.sum())} of {int(mine.sum()):,} launch calls"
                f"{view.of_process(process)} return only when their kernel has ended: they wait for "
                f"{ms(waited_ns)}, {percent(waited_ns / view.span_ns)} of the recording, and the host never "
                "works ahead of the GPU",
                cost_ns=min(waited_ns, idle_ns),
                cost_of="waits in launch calls, at most the GPU's idle time",
                place=view.hottest_line(kernels, end_ns - start_ns),
                rows=kernels,
                weight=end_ns - start_ns,
                remedy=REMEDY,
                saving=Saving(waits=np.asarray(call[kernels], dtype=np.int64)),
            )
        )
    if not findings and short:
        return Abstain(
            f"fewer than {view[ENOUGH]:.0f} kernels take longer than an ordinary launch call, so that those "
            "that end within it tell nothing",
            LONGER,
        )
    return findings or ()


RULE = Rule(
    "blocking_launches",
    "Do launch calls wait for their kernels?",
    (LONG, ALL, ENOUGH),
    check,
    __doc__ or "",
    time=Time.IDLE,
)
