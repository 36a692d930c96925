# SPDX-License-Identifier: Apache-2.0
"""Did the recording itself change what was recorded?

Ours notes what a callback costs; others note the stretches in which they flushed buffers or set themselves
up. Compilers and the loading of modules, which the same tables hold, are the program's own.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.busy import Busy
from profiling_lab.rules.rule import Abstain, Event, Finding, Rule, Threshold, Verdict, ms, percent
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import OverheadKind

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
    noted = _noted(view)
    if noted is None:
        return Abstain(
            "the file does not say what the recording cost", "`profiling-lab record`, or nsys from 2025 on"
        )
    cost_ns, events, number = noted
    share = cost_ns / view.span_ns
    if share < view[NOTABLE]:
        return ()
    judged = (
        "the times are contaminated" if share >= view[CONTAMINATED] else "short times are longer than without"
    )
    return [
        Finding(
            what=f"the profiler took {ms(cost_ns)}, {percent(share)} of the recording: {judged}",
            cost_ns=cost_ns,
            cost_of="the profiler's own time",
            place=None,
            evidence=events,
            events=number,
            remedy=REMEDY,
        )
    ]


def _noted(view: View) -> tuple[int, tuple[Event, ...], int] | None:
    """The cost in the recorded stretch, events that show it, and how many; None where it was not noted."""
    facts = view.trace.recorder_facts
    per_call = facts.get("overhead_callback_ns", "")
    if per_call.isdecimal():
        longest = view.evidence("calls", np.arange(len(view.calls)), view.calls.end_ns - view.calls.start_ns)
        return int(per_call) * len(view.calls), longest, len(view.calls)
    overheads = view.trace.overheads
    if not len(overheads):
        return None
    began, ended = int(view.operations.start_ns.min()), int(view.operations.end_ns.max())
    inside = (overheads.end_ns > began) & (overheads.start_ns < ended)
    rows = np.flatnonzero(inside & np.isin(overheads.kind, OF_THE_PROFILER))
    start_ns = np.maximum(overheads.start_ns[rows], began)
    end_ns = np.minimum(overheads.end_ns[rows], ended)
    longest_first = rows[np.argsort(start_ns - end_ns, kind="stable")[:20]].tolist()
    events = tuple(Event("overheads", row, int(overheads.start_ns[row])) for row in longest_first)
    return Busy.of(start_ns, end_ns).total_ns if len(rows) else 0, events, len(rows)


RULE = Rule(
    "profiler_overhead",
    "Did the recording change what it recorded?",
    (NOTABLE, CONTAMINATED),
    check,
    __doc__ or "",
)
