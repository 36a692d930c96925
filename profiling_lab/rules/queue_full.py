# SPDX-License-Identifier: Apache-2.0
"""Does the host wait because the queue of the GPU is full? Then long launch calls are no overhead at all.

The queue holds 1,024 launches. Where it is full the GPU is far behind: only less work for the GPU helps, and
CUDA graphs and fewer launches win nothing. The driver's own record of a full command buffer counts first;
without it, the launches that had been made and not begun. The GPU loses nothing by it, so the cost is 0: the
finding explains long calls, and says how much time the host has to spare.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.costs import held
from profiling_lab.rules.finding import FROM_THE_START, Abstain, Threshold, Verdict, ms, percent
from profiling_lab.rules.launch_queue import full_queue_ns, fullest_queue
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import ENOUGH_FRAC, View

QUEUE = Threshold("queue", "launches that wait", 1000, "from", "CUDA: 1,024 entries; HTA: the same")
FULL = Threshold("full", "the host waits for room", 0.05, "of the recording, from", "ours")
SLOW_CALL = Threshold(
    "slow_call", "a launch that waits for room lasts", 100_000, "ns, from", "HTA: 50-100 µs"
)
REMEDY = (
    "nothing on the host: make the GPU's work shorter (`kernels`, `lines`); prefetch data in the spare time"
)


def check(view: View) -> Verdict:
    findings, unknown = [], 0
    for process in view.processes:
        kernels = np.flatnonzero(view.kernels & (view.operations.process == process))
        known = kernels[view.attribution.call[kernels] >= 0]
        noted_ns = full_queue_ns(view, process)
        if len(known) < ENOUGH_FRAC * len(kernels) and not noted_ns:
            unknown += 1
            continue
        # The kernels of a graph share one call.
        call, first = np.unique(view.attribution.call[known], return_index=True)
        slow = view.call_ns(known[first]) >= view[SLOW_CALL]
        stood, rows = held(view, call[slow]), known[first[slow]]
        fullest = 0 if noted_ns else fullest_queue(view, known)
        waited_ns = noted_ns or (stood.total_ns if fullest >= view[QUEUE] else 0)
        if not len(stood.calls) or waited_ns < view[FULL] * view.span_ns:
            continue
        how = "as the driver noted" if noted_ns else f"with up to {fullest:,} launches waiting"
        findings.append(
            view.finding(
                f"the host{view.of_process(process)} waited {ms(waited_ns)}, "
                f"{percent(waited_ns / view.span_ns)} of the recording, for room in the queue of the GPU, "
                f"{how}: the GPU is behind",
                cost_ns=0,
                cost_of="none for the GPU, only the host waits",
                place=view.hottest_line(rows, stood.each_ns),
                rows=rows,
                weight=stood.each_ns,
                remedy=REMEDY,
                confidence="high" if noted_ns else "medium",
            )
        )
    if not findings and unknown:
        return Abstain("the launches of most kernels were not recorded", FROM_THE_START)
    return findings


RULE = Rule(
    "queue_full", "Does the host wait for a full queue?", (QUEUE, FULL, SLOW_CALL), check, __doc__ or ""
)
