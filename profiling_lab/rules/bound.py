# SPDX-License-Identifier: Apache-2.0
"""What limits the program: launching (the GPU waits for the host), copying, or neither?

Long launch calls do not mean that launching limits: where the queue of the GPU is full, the call waits for
the GPU, and a CUDA graph wins nothing.

Copy-bound: for half of the recording only copies run. Launch-bound: the GPU idles, most kernels found it with
nothing left to do, they are launched more slowly than they run, and no queue was full. Long gaps (first
calls, loading data) come from no launch: they are left out here, and `gap_cause` explains them.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.busy import Busy
from profiling_lab.rules.finding import FROM_THE_START, Abstain, Finding, Threshold, Verdict, ms, percent
from profiling_lab.rules.gpu_gaps import LONG
from profiling_lab.rules.launch_queue import full_queue_ns, launch_pace
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import ENOUGH_FRAC, View

IDLE = Threshold("idle", "the GPU idles", 0.15, "of the recording, from", "TraceLens and nsys-ai: 15 %")
COPYING = Threshold("copying", "only copies run", 0.5, "of the recording, from", "ours: more than all else")
STARVED = Threshold("starved", "kernels that found the GPU with no work", 0.5, "of all, from", "ours: most")
QUEUE = Threshold("queue", "launches in a full queue", 1000, "from", "CUDA: 1,024 entries")
FULL = Threshold("full", "the host waits for a full queue", 0.05, "of the recording, from", "ours")
OF_LAUNCHES = "launch less: a CUDA graph (torch.compile(mode='reduce-overhead')), larger batches, fusion"
OF_COPIES = "copy less, or beside computing: keep data on the GPU, prefetch on a stream, pin, smaller types"


def check(view: View) -> Verdict:
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
            f"of {len(kernels)} kernels {len(pace.known)} have their launch in the file: too few",
            FROM_THE_START,
        )
    queue_is_full = pace.fullest >= view[QUEUE] or full_queue_ns(view, process) >= view[FULL] * span_ns
    starved_frac = len(pace.starved) / max(len(pace.known), 1)
    if starved_frac < view[STARVED] or pace.interval_ns <= pace.kernel_ns or queue_is_full:
        return None
    waited_ns = np.where(pace.starved_ns < view[LONG], pace.starved_ns, 0)
    return view.finding(
        what=f"launch-bound{view.of_process(process)}: apart from long gaps the GPU idles "
        f"{percent(idle_ns / span_ns)} of the time; {percent(starved_frac)} of the kernels found it with "
        f"nothing left to do, one launched every {pace.interval_ns / 1000:.1f} µs to run "
        f"{pace.kernel_ns / 1000:.1f} µs",
        cost_ns=idle_ns,
        cost_of="GPU idle in gaps that are not long",
        place=view.hottest_line(pace.starved, waited_ns),
        rows=pace.starved,
        weight=waited_ns,
        remedy=OF_LAUNCHES,
    )


RULE = Rule(
    "bound",
    "Does launching or copying limit the program?",
    (IDLE, LONG, COPYING, STARVED, QUEUE, FULL),
    check,
    __doc__ or "",
    time=Time.IDLE,
    symptom=True,
    wins_frac=0.7,
)
