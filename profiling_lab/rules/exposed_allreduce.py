# SPDX-License-Identifier: Apache-2.0
"""Is the last all-reduce of each step exposed? After backward there is no compute left to overlap with.

In each step the rule counts the communication after the last backward kernel, as far as no compute runs at
the same time. If backward is not known, it counts the last part of the step in which only communication
runs. The last bucket holds the gradients of the first layers: the smaller it is, the earlier the optimizer
can start.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.finding import Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, median
from profiling_lab.trace.operation_classes import OperationClass

SHARE = Threshold("share", "exposed at the end of a step", 0.05, "of the median step, from", "ours")
REMEDY = (
    "make the last bucket small (DDP's bucket_cap_mb and first_bucket), reduce in bf16, step the optimizer "
    "by bucket, or accumulate gradients under no_sync"
)


def check(view: View) -> RuleResult:
    communicates = view.classes == OperationClass.COMMUNICATION
    if not communicates.any():
        return ()
    if view.steps is None:
        return Abstain("the trace has no steps", "steps: prof.step(), or one NVTX range per step")
    operations, steps, findings = view.operations, view.steps, []
    for process, device, rows in view.devices:
        talking = rows[communicates[rows]]
        talking = talking[np.argsort(operations.start_ns[talking], kind="stable")]
        mine = steps.process == process
        if not mine.any() or not len(talking):
            continue
        computing = rows[view.classes[rows] == OperationClass.COMPUTE]
        exposed = view.busy(talking).without(view.busy(computing))
        starts, ends = steps.start_ns[mine], steps.end_ns[mine]
        done = operations.end_ns[computing[view.attribution.phase[computing] == Phase.BACKWARD]]
        tails = np.sort(done) if len(done) else exposed.start_ns
        tail_ns = exposed.busy_within(_last_before(tails, starts, ends), ends)
        tail, step_ns = float(median(tail_ns)), float(median(ends - starts))
        if tail < view[SHARE] * step_ns:
            continue
        last = talking[np.maximum(np.searchsorted(operations.start_ns[talking], ends) - 1, 0)]
        findings.append(
            view.finding(
                f"each step ends with {ms(tail)} of exposed communication, "
                f"{percent(tail / step_ns)} of the median step, on device {device}{view.of_process(process)}",
                cost_ns=int(tail_ns.sum()),
                cost_of="exposed communication at the end of steps",
                place=view.hottest_line(last, tail_ns),
                rows=last,
                weight=tail_ns,
                remedy=REMEDY,
            )
        )
    return findings


def _last_before(moments: I64, starts: I64, ends: I64) -> I64:
    """Per interval the last of the sorted `moments` within it, else its end."""
    row = np.searchsorted(moments, ends, "left") - 1
    last = np.append(moments, np.iinfo(np.int64).min)[row]
    return np.asarray(np.where((row >= 0) & (last >= starts), last, ends), dtype=np.int64)


RULE = Rule(
    "exposed_allreduce",
    "Is the last all-reduce of each step exposed?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
