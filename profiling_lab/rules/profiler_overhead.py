# SPDX-License-Identifier: Apache-2.0
"""Did the recording itself change what was recorded?

Ours notes what a callback costs; others note the stretches in which they flushed buffers or set themselves
up. Compilers and the loading of modules, which the same tables hold, are the program's own.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import within_recording
from profiling_lab.rules.finding import Abstain, Threshold, Verdict, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import FARTHEST_NS, I64, OverheadKind

NOTABLE = Threshold("notable", "overhead is worth a word", 0.05, "of the recording, from", "nsys-ai")
CONTAMINATED = Threshold("contaminated", "times cannot be trusted", 0.15, "of the recording, from", "nsys-ai")
# What else the tables hold, compilers and loading, is the program's own.
OF_THE_PROFILER = (
    OverheadKind.BUFFER_FLUSH,
    OverheadKind.INSTRUMENTATION,
    OverheadKind.RESOURCE,
    OverheadKind.PROFILER,
)
REMEDY = "compare shares, not times; record again with less: no native backtraces, no sampling, fewer steps"


def check(view: View) -> Verdict:
    noted = _of_callbacks(view) or _of_stretches(view)
    if noted is None:
        return Abstain(
            "the file does not say what the recording cost", "`profiling-lab record`, or nsys 2025"
        )
    table, rows, weight, cost_ns = noted
    share = cost_ns / view.span_ns
    if share < view[NOTABLE]:
        return ()
    judged = (
        "the times are contaminated" if share >= view[CONTAMINATED] else "short times are longer than without"
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
    """Our recorder's: (table, rows, weight, cost); None where it was not noted."""
    per_call = view.trace.recorder_facts.get("overhead_callback_ns", "")
    if not per_call.isdecimal() or not len(view.calls):
        return None
    calls, each_ns = view.calls, min(int(per_call), FARTHEST_NS)
    rows = np.arange(len(calls), dtype=np.int64)
    # Threads pay side by side: what counts is the one that paid most.
    cost_ns = max(
        within_recording(view, calls.end_ns[mine], calls.end_ns[mine] + each_ns)
        for _, mine in grouped(rows, calls.thread)
    )
    return "calls", rows, calls.end_ns - calls.start_ns, cost_ns


def _of_stretches(view: View) -> tuple[str, I64, I64, int] | None:
    """The others', as far as it lies in the recorded stretch."""
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
