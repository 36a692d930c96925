# SPDX-License-Identifier: Apache-2.0
"""Does the program wait for its DataLoader? torch puts a range around each `next`, and the rule reads these.

The cost is the GPU's idle time during these calls. Waiting while the GPU still has work costs nothing. A
custom loader is seen if it puts a range around each batch whose name contains `DataLoader` and `__next__`.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.critical_path.kinds import HOST_CODE, Kind
from profiling_lab.analysis.critical_path.savings import HostWork, Saving
from profiling_lab.rules.finding import OPERATORS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import FARTHEST_NS
from profiling_lab.trace.spans import Spans

SHARE = Threshold(
    "share", "waiting for data", 0.05, "of the recording, more than", "TensorBoard's profiler plugin"
)
REMEDY = "load in the background: DataLoader(num_workers=4 or more, pin_memory=True, persistent_workers=True)"
_NEXT = re.compile(r"DataLoader.*__next__")
_OPERATOR = re.compile(r"^(aten|autograd)::|^ProfilerStep#")


def check(view: View) -> RuleResult:
    ranges = view.trace.ranges
    loading = [_NEXT.search(name) is not None for name in ranges.names]
    if not any(loading):
        if any(_OPERATOR.search(name) for name in ranges.names):
            return ()  # the trace has torch's operators: it would also have a DataLoader's range
        return Abstain(
            "the trace has no operator ranges, so the DataLoader's range is missing too", OPERATORS
        )
    in_next = np.array(loading, dtype=bool)[ranges.name]
    closed = (ranges.start_ns > -FARTHEST_NS) & (ranges.end_ns < FARTHEST_NS)
    findings = []
    for process, busy in view.processes.items():
        rows = np.flatnonzero(in_next & closed & (ranges.process == process))
        waits = Busy.of(ranges.start_ns[rows], ranges.end_ns[rows])
        if not waits.span_ns or not busy.span_ns:
            continue
        # The recording may begin inside a DataLoader call, before the first GPU operation.
        began = min(int(waits.start_ns[0]), int(busy.start_ns[0]))
        whole_ns = max(int(waits.end_ns[-1]), int(busy.end_ns[-1])) - began
        if waits.total_ns <= view[SHARE] * whole_ns:
            continue
        idle_ns = int(busy.idle_within(waits.start_ns, waits.end_ns).sum())
        spans = Spans.of(ranges.process[rows], ranges.start_ns[rows], ranges.end_ns[rows])
        longest = rows[np.argmax(ranges.end_ns[rows] - ranges.start_ns[rows])]
        findings.append(
            view.finding(
                what=f"the program waited {ms(waits.total_ns)} for its DataLoader in {len(rows)} calls, "
                f"{percent(waits.total_ns / whole_ns)} of the recording; the GPU idled {ms(idle_ns)} of it",
                cost_ns=idle_ns,
                cost_of="GPU idle while the DataLoader worked",
                place=view.place(int(view.range_place[longest])),
                table="ranges",
                rows=rows,
                weight=ranges.end_ns[rows] - ranges.start_ns[rows],
                remedy=REMEDY,
                saving=Saving(host=(HostWork(spans, (*HOST_CODE, Kind.DATA_LOADING)),)),
            )
        )
    return findings


RULE = Rule(
    "dataloader",
    "Does the program wait for its DataLoader?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.IDLE,
    of_host=True,
)
