# SPDX-License-Identifier: Apache-2.0
"""Does the host wait because the launch queue of the GPU is full? Then long launch calls are not overhead.

The queue holds 1,024 launches. If it is full, the GPU is far behind the host: only less GPU work helps, while
CUDA graphs and fewer launches do not. If the driver recorded a full command buffer, that decides; else the
number of launches that were made and have not begun. The GPU loses nothing, so the cost is 0. The finding
explains the long calls, and says how much time the host has to spare.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.costs import host_blocked
from profiling_lab.rules.finding import FROM_THE_START, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.launch_queue import full_queue_ns, fullest_queue
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import ENOUGH_FRAC, View

QUEUE = Threshold("queue", "queued launches", 1000, "from", "CUDA: 1,024 entries; HTA: the same")
FULL = Threshold("full", "the host waits for room", 0.05, "of the recording, from", "ours")
SLOW_CALL = Threshold(
    "slow_call", "a launch call that waits for room takes", 100_000, "ns, from", "HTA: 50-100 µs"
)
REMEDY = (
    "nothing on the host: reduce the GPU's work (`kernels`, `lines`); use the spare host time to "
    "prefetch data"
)


def check(view: View) -> RuleResult:
    findings, unknown = [], 0
    for process in view.processes:
        kernels = np.flatnonzero(view.kernels & (view.operations.process == process))
        known = kernels[view.attribution.call[kernels] >= 0]
        noted_ns = full_queue_ns(view, process)
        if len(known) < ENOUGH_FRAC * len(kernels) and not noted_ns:
            unknown += 1
            continue
        # The kernels of a CUDA graph share one call.
        call, first = np.unique(view.attribution.call[known], return_index=True)
        slow = view.call_ns(known[first]) >= view[SLOW_CALL]
        blocked, rows = host_blocked(view, call[slow]), known[first[slow]]
        fullest = 0 if noted_ns else fullest_queue(view, known)
        waited_ns = noted_ns or (blocked.total_ns if fullest >= view[QUEUE] else 0)
        if not len(blocked.calls) or waited_ns < view[FULL] * view.span_ns:
            continue
        how = "as recorded by the driver" if noted_ns else f"with up to {fullest:,} queued launches"
        findings.append(
            view.finding(
                f"the host{view.of_process(process)} waited {ms(waited_ns)}, "
                f"{percent(waited_ns / view.span_ns)} of the recording, for room in the launch queue, "
                f"{how}: the GPU is the bottleneck",
                cost_ns=0,
                cost_of="none for the GPU; only the host waits",
                place=view.hottest_line(rows, blocked.each_ns),
                rows=rows,
                weight=blocked.each_ns,
                remedy=REMEDY,
                confidence="high" if noted_ns else "medium",
            )
        )
    if not findings and unknown:
        return Abstain("most kernels have no recorded launch", FROM_THE_START)
    return findings


RULE = Rule(
    "queue_full",
    "Does the host wait for a full launch queue?",
    (QUEUE, FULL, SLOW_CALL),
    check,
    __doc__ or "",
)
