# SPDX-License-Identifier: Apache-2.0
"""Did the recording itself change what was recorded?

profiling_lab records the cost of its callbacks; other profilers record when they flushed buffers or
initialised themselves. Compilation and module loading are in the same tables, but belong to the program.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import within_recording
from profiling_lab.rules.finding import Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import FARTHEST_NS, I64, OverheadKind

NOTABLE = Threshold("notable", "overhead is reported", 0.05, "of the recording, from", "nsys-ai")
CONTAMINATED = Threshold("contaminated", "times are not reliable", 0.15, "of the recording, from", "nsys-ai")
# The tables also contain compilation and module loading, which belong to the program.
OF_THE_PROFILER = (
    OverheadKind.BUFFER_FLUSH,
    OverheadKind.INSTRUMENTATION,
    OverheadKind.RESOURCE,
    OverheadKind.PROFILER,
)
REMEDY = "compare shares, not times; record less: no native backtraces, no sampling, fewer steps"


def check(view: View) -> RuleResult:
    noted = _of_callbacks(view) or _of_stretches(view)
    if noted is None:
        return Abstain(
            "the trace does not contain the profiler's overhead", "`profiling-lab record`, or nsys 2025"
        )
    table, rows, weight, cost_ns = noted
    share = cost_ns / view.span_ns
    if share < view[NOTABLE]:
        return ()
    judged = (
        "the times are not reliable" if share >= view[CONTAMINATED] else "short calls and gaps appear longer"
    )
    return [
        view.finding(
            f"the profiler took {ms(cost_ns)}, {percent(share)} of the recording: {judged}",
            cost_ns=cost_ns,
            cost_of="the profiler's own time",
            place=None,
            table=table,
            rows=rows,
            weight=weight,
            remedy=REMEDY,
        )
    ]


def _of_callbacks(view: View) -> tuple[str, I64, I64, int] | None:
    """Our recorder's overhead: (table, rows, weight, cost); None if it was not recorded."""
    per_call = view.trace.recorder_facts.get("overhead_callback_ns", "")
    if not per_call.isdecimal() or not len(view.calls):
        return None
    calls, each_ns = view.calls, min(int(per_call), FARTHEST_NS)
    rows = np.arange(len(calls), dtype=np.int64)
    # Threads run concurrently: the one with the most overhead counts.
    cost_ns = max(
        within_recording(view, calls.end_ns[mine], calls.end_ns[mine] + each_ns)
        for _, mine in grouped(rows, calls.thread)
    )
    return "calls", rows, calls.end_ns - calls.start_ns, cost_ns


def _of_stretches(view: View) -> tuple[str, I64, I64, int] | None:
    """The overhead of other profilers, within the recorded GPU activity."""
    overheads = view.trace.overheads
    if not len(overheads):
        return None
    began, ended = int(view.operations.start_ns.min()), int(view.operations.end_ns.max())
    inside = (overheads.end_ns > began) & (overheads.start_ns < ended)
    rows = np.flatnonzero(inside & np.isin(overheads.kind, OF_THE_PROFILER))
    start_ns, end_ns = overheads.start_ns[rows].clip(began), overheads.end_ns[rows].clip(None, ended)
    cost_ns = within_recording(view, overheads.start_ns[rows], overheads.end_ns[rows])
    return "overheads", rows, end_ns - start_ns, cost_ns


RULE = Rule(
    "profiler_overhead",
    "Did the recording change what it recorded?",
    (NOTABLE, CONTAMINATED),
    check,
    __doc__ or "",
    time=Time.IDLE,
)
