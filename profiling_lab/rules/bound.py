# SPDX-License-Identifier: Apache-2.0
"""Is the program launch-bound, copy-bound or neither?

Copy-bound: only copies run for at least half of the recording. Launch-bound: the GPU idles, most kernels
start on an idle GPU, they are launched more slowly than they run, and the launch queue was never full. Long
launch calls alone do not mean launch-bound: if the launch queue is full, the call waits for the GPU, and a
CUDA graph does not help.

Long gaps (first calls, data loading) are not caused by launches. They are excluded here; `gap_cause` explains
them.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.busy import Busy
from profiling_lab.rules.finding import FROM_THE_START, Abstain, Finding, RuleResult, Threshold, ms, percent
from profiling_lab.rules.gpu_gaps import LONG
from profiling_lab.rules.launch_queue import full_queue_ns, launch_pace
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import ENOUGH_FRAC, View

IDLE = Threshold("idle", "the GPU idles", 0.15, "of the recording, from", "TraceLens and nsys-ai: 15 %")
COPYING = Threshold("copying", "only copies run", 0.5, "of the recording, from", "ours: more than all else")
STARVED = Threshold("starved", "kernels that start on an idle GPU", 0.5, "of all, from", "ours: most")
QUEUE = Threshold("queue", "launches in a full launch queue", 1000, "from", "CUDA: 1,024 entries")
FULL = Threshold("full", "the host waits for a full launch queue", 0.05, "of the recording, from", "ours")
OF_LAUNCHES = (
    "reduce launches: a CUDA graph (torch.compile(mode='reduce-overhead')), larger batches, fused kernels"
)
OF_COPIES = (
    "copy less or overlap copies with compute: keep data on the GPU, prefetch on a side stream, pin memory"
)


def check(view: View) -> RuleResult:
    findings: list[Finding] = []
    unknown: list[Abstain] = []
    for process, busy in view.processes.items():
        finding: Finding | Abstain | None = _copy_bound(view, process, busy)
        idle_ns, span_ns = busy.without_long_gaps(view[LONG])
        if finding is None and idle_ns >= max(view[IDLE] * span_ns, 1):
            finding = _launch_bound(view, process, idle_ns, span_ns)
        unknown += [finding] if isinstance(finding, Abstain) else []
        findings += [finding] if isinstance(finding, Finding) else []
    return findings or (unknown[0] if unknown else ())


def _copy_bound(view: View, process: int, busy: Busy) -> Finding | None:
    operations = view.operations
    copies = np.flatnonzero(view.copies & (operations.process == process))
    others = np.flatnonzero(~view.copies & (operations.process == process))
    copying_ns = busy.total_ns - (view.busy(others).total_ns if len(others) else 0)
    if not len(copies) or not busy.span_ns or copying_ns < view[COPYING] * busy.span_ns:
        return None
    full_ns = full_queue_ns(view, process)
    queue = f"; launches waited {ms(full_ns)} because the command buffer was full" if full_ns else ""
    share, moved_bytes = copying_ns / busy.span_ns, int(operations.size_bytes[copies].sum())
    return view.finding(
        what=f"copy-bound{view.of_process(process)}: for {ms(copying_ns)}, {percent(share)} of the "
        f"recording, only copies run ({len(copies):,}, {moved_bytes:,} bytes){queue}",
        cost_ns=copying_ns,
        cost_of="time in which only copies run",
        place=view.hottest_line(copies, operations.duration_ns[copies]),
        rows=copies,
        weight=operations.duration_ns[copies],
        remedy=OF_COPIES,
    )


def _launch_bound(view: View, process: int, idle_ns: int, span_ns: int) -> Finding | Abstain | None:
    kernels = np.flatnonzero(view.kernels & (view.operations.process == process))
    pace = launch_pace(view, kernels)
    if len(pace.known) < ENOUGH_FRAC * max(len(kernels), 1):
        return Abstain(
            f"of {len(kernels)} kernels {len(pace.known)} have a recorded launch: too few",
            FROM_THE_START,
        )
    queue_is_full = pace.fullest >= view[QUEUE] or full_queue_ns(view, process) >= view[FULL] * span_ns
    starved_frac = len(pace.starved) / max(len(pace.known), 1)
    if starved_frac < view[STARVED] or pace.interval_ns <= pace.kernel_ns or queue_is_full:
        return None
    waited_ns = np.where(pace.starved_ns < view[LONG], pace.starved_ns, 0)
    return view.finding(
        what=f"launch-bound{view.of_process(process)}: outside of long gaps the GPU idles "
        f"{percent(idle_ns / span_ns)} of the time; {percent(starved_frac)} of the kernels started on "
        f"an idle GPU; the host launches one every {pace.interval_ns / 1000:.1f} µs, and one runs "
        f"{pace.kernel_ns / 1000:.1f} µs",
        cost_ns=idle_ns,
        cost_of="GPU idle outside of long gaps",
        place=view.hottest_line(pace.starved, waited_ns),
        rows=pace.starved,
        weight=waited_ns,
        remedy=OF_LAUNCHES,
    )


RULE = Rule(
    "bound",
    "Is the program launch-bound or copy-bound?",
    (IDLE, LONG, COPYING, STARVED, QUEUE, FULL),
    check,
    __doc__ or "",
    time=Time.IDLE,
    symptom=True,
    wins_frac=0.7,
)
