# SPDX-License-Identifier: Apache-2.0
"""Do waits for events serialise streams that were meant to run concurrently?

The rule fires if several streams each do a good part of the work, hardly ever run concurrently, and most
changes from one stream to another follow a cudaStreamWaitEvent. Then streams add complexity without any
speed-up. The cost is the most that could overlap with the busiest stream; work with real dependencies
cannot. Communication is left to the rules communication and exposed_allreduce: it waits for its gradients.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import CALLS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I64
from profiling_lab.trace.cuda_calls import CudaCall
from profiling_lab.trace.operation_classes import OperationClass

PART = Threshold("part", "a stream that counts", 0.05, "of the kernel time, from", "ours")
BESIDE = Threshold("beside", "streams overlap", 0.1, "of what could overlap, less than", "ours: hardly ever")
WAITED = Threshold("waited", "changes of stream after a wait", 0.5, "of all, from", "ours: most")
REMEDY = "record the event right after the needed work, and wait as late as possible; or use one stream"


def check(view: View) -> RuleResult:
    findings, serial, follows = [], False, _launched_after_wait(view)
    for process, device, rows in view.devices:
        kernels = rows[view.kernels[rows] & (view.classes[rows] != OperationClass.COMMUNICATION)]
        times = {
            stream: view.busy(mine).total_ns
            for stream, mine in grouped(kernels, view.operations.stream[kernels])
        }
        total_ns = sum(times.values())
        counting = [ns for ns in times.values() if ns >= view[PART] * total_ns]
        busiest_ns, together_ns = max(times.values(), default=0), view.busy(kernels).total_ns
        could_ns = total_ns - busiest_ns
        if len(counting) < 2 or total_ns - together_ns >= view[BESIDE] * could_ns:
            continue
        serial = True
        order = kernels[np.argsort(view.operations.start_ns[kernels], kind="stable")]
        changes = order[1:][np.diff(view.operations.stream[order]) != 0]
        waited = changes[follows[changes]]
        if len(waited) < view[WAITED] * len(changes):
            continue
        findings.append(
            view.finding(
                f"{len(counting)} streams of device {device}{view.of_process(process)} run one after the "
                f"other: only {percent((total_ns - together_ns) / could_ns)} of what could overlap "
                f"does; {len(waited):,} of {len(changes):,} changes of stream follow a wait for "
                f"an event; at most {ms(together_ns - busiest_ns)} could be hidden",
                cost_ns=together_ns - busiest_ns,
                cost_of="kernels that could overlap with the busiest stream",
                place=_line_of_waits(view) or view.hottest_line(waited, view.operations.duration_ns[waited]),
                rows=waited,
                weight=view.operations.duration_ns[waited],
                remedy=REMEDY,
                confidence="low",
                saving=Saving(freed=waited),
            )
        )
    if serial and not findings and not view.calls_of(CudaCall.STREAM_WAIT_EVENT).any():
        return Abstain("streams run one after the other, and no cudaStreamWaitEvent was recorded", CALLS)
    return findings


def _line_of_waits(view: View) -> Frame | None:
    """The line that makes most of the calls of cudaStreamWaitEvent."""
    places = view.call_place[view.calls_of(CudaCall.STREAM_WAIT_EVENT)]
    numbers, counts = np.unique(places[places >= 0], return_counts=True)
    return view.place(int(numbers[counts.argmax()])) if len(numbers) else None


def _launched_after_wait(view: View) -> Mask:
    """Per operation, whether its thread called cudaStreamWaitEvent since its previous launch."""
    calls, call = view.calls, view.attribution.call
    launches = np.zeros(len(calls), dtype=bool)
    launches[call[call >= 0]] = True
    waits = view.calls_of(CudaCall.STREAM_WAIT_EVENT)
    order = np.lexsort((calls.start_ns, calls.thread))
    waits_until = np.cumsum(waits[order])
    at: I64 = np.flatnonzero(launches[order])
    before = np.concatenate([[0], waits_until[at[:-1]]]) if len(at) else np.zeros(0, dtype=np.int64)
    after_wait = np.zeros(len(calls) + 1, dtype=bool)
    after_wait[order[at]] = waits_until[at] > before
    return np.asarray(after_wait[call])


RULE = Rule(
    "stream_chain",
    "Do waits for events serialise streams?",
    (PART, BESIDE, WAITED),
    check,
    __doc__ or "",
    time=Time.IDLE,
)
