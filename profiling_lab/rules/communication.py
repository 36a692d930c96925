# SPDX-License-Identifier: Apache-2.0
"""Does the program wait for communication between GPUs? Communication that overlaps with compute costs
nothing.

Communication kernels are recognised by name: those of NCCL, NVSHMEM, and the all-reduces over symmetric
memory in torch, vLLM and others. The cost is the exposed communication: time in which communication runs
and no compute does. An all-reduce that waits for a straggler looks the same; `ranks` tells the two apart.
Gradients that are accumulated are needed on all GPUs once, before the optimizer: where each micro-batch sends
them, the others' time would be saved (see accumulated.py).
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.rules import accumulated
from profiling_lab.rules.finding import Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.operation_classes import OperationClass

SHARE = Threshold(
    "share", "exposed communication", 0.1, "of the recording, more than", "TensorBoard's profiler plugin"
)
HIDDEN = Threshold(
    "hidden", "is called badly overlapped", 0.3, "of it, less than", "nsys-ai: communication-bound"
)
REMEDY = (
    "start it earlier and in larger pieces (DDP bucket_cap_mb, gradient_as_bucket_view, FSDP prefetch), send "
    "less (bf16 gradients, no_sync while accumulating)"
)


def check(view: View) -> RuleResult:
    communicates = view.classes == OperationClass.COMMUNICATION
    if not communicates.any():
        if len(view.devices) == 1:
            return ()
        return Abstain(
            f"{len(view.devices)} GPUs are used, but no kernel has the name of a communication kernel",
            "the kernels of your own communication library, if you use one",
        )
    computes = view.classes == OperationClass.COMPUTE
    findings = []
    for process, device, rows in view.devices:
        talks = view.busy(rows[communicates[rows]])
        hidden_ns = int(view.busy(rows[computes[rows]]).busy_within(talks.start_ns, talks.end_ns).sum())
        exposed_ns = talks.total_ns - hidden_ns
        if exposed_ns <= view[SHARE] * view.span_ns:
            continue
        hidden = hidden_ns / talks.total_ns
        mine = rows[communicates[rows]]
        duration = view.operations.duration_ns[mine]
        streams = view.operations.stream
        on_compute_stream = np.isin(streams[mine], streams[rows[computes[rows]]])
        why = (
            "; most of it runs on a compute stream"
            if duration[on_compute_stream].sum() > duration.sum() / 2
            else ""
        )
        overlap = f"; only {percent(hidden)} overlaps with compute"
        again = accumulated.accumulated(view, rows)
        often = (
            f"; {len(again):,} of {len(mine):,} kernels send gradients that are added to before they are used"
        )
        again_frac = float(view.operations.duration_ns[again].sum()) / max(int(duration.sum()), 1)
        findings.append(
            view.finding(
                f"device {device}{view.of_process(process)} communicates for {ms(talks.total_ns)}; "
                f"{ms(exposed_ns)} of it, {percent(exposed_ns / view.span_ns)} of the recording, is "
                f"exposed{overlap if hidden < view[HIDDEN] else ''}{why}{often if len(again) else ''}",
                cost_ns=exposed_ns,
                cost_of="exposed communication",
                place=view.hottest_line(mine, duration),
                rows=mine,
                weight=duration,
                remedy=accumulated.OF_ACCUMULATED if len(again) else REMEDY,
                wins_frac=again_frac if len(again) else None,
                saving=fewer(again) if len(again) else None,
            )
        )
    return findings


RULE = Rule(
    "communication",
    "Does the program wait for communication?",
    (SHARE, HIDDEN),
    check,
    __doc__ or "",
    time=Time.BUSY,
    wins_frac=0.3,
)
