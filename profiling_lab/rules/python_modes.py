# SPDX-License-Identifier: Apache-2.0
"""Does each operator go through Python on its way to the GPU?

Under a mode (TorchDispatchMode, TorchFunctionMode), as that of the FLOP counter or of a check for NaN, torch
calls Python for each operator, in backward, too. That takes several times as long as to launch it. The
recorder sees it in the stacks of the launches: `__torch_dispatch__` of the mode is in them. The cost is the
idle time of the GPU in the host's code between two such launches. A library's tensor with an own
`__torch_dispatch__`, such as DTensor, is no mode: it is needed.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.kinds import HOST_CODE
from profiling_lab.analysis.critical_path.savings import HostWork, Saving
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import idle_within
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms, percent, where
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I64
from profiling_lab.trace.spans import Spans
from profiling_lab.trace.stacks import Frame

SHARE = Threshold("share", "GPU idle between launches", 0.05, "of the recording, at least", "ours: as medium")
LONG = Threshold(
    "long", "host code between two launches", 2_000_000, "ns, less than", "ours: more is other work"
)
METHODS = ("__torch_dispatch__", "__torch_function__")
REMEDY = "leave the mode out of the steps: count once what does not change, check a few steps instead of all"


def check(view: View) -> RuleResult:
    stacks, calls = view.trace.stacks, view.calls
    if len(stacks) == 1:
        return Abstain("the trace has no Python stacks", STACKS)
    inside = stacks.nearest(lambda frame: _is_mode(frame, view))[calls.stack]
    before, after = _neighbours(view, inside > 0, view[LONG])
    findings = []
    for mode, mine in grouped(np.arange(len(before)), stacks.frame[inside[after]]):
        start_ns, end_ns = calls.end_ns[before[mine]], calls.start_ns[after[mine]]
        process = calls.process[after[mine]]
        idle_ns = idle_within(view, process, start_ns, end_ns)
        cost_ns = int(idle_ns.sum())
        if cost_ns < view[SHARE] * view.span_ns:
            continue
        place = view.call_place[after[mine]]
        sums = np.bincount(place + 1, weights=idle_ns * (place >= 0), minlength=1)
        line, name = view.place(int(sums.argmax()) - 1), stacks.frames[mode].function
        findings.append(
            view.finding(
                f"{len(mine):,} launches go through {name}, Python that is called for each operator: the GPU "
                f"idled {ms(cost_ns)}, {percent(cost_ns / view.span_ns)} of the recording, before them"
                f"{where(line, ', most of it at this line')}",
                cost_ns=cost_ns,
                cost_of="GPU idle in the host's code between these launches",
                place=line,
                rows=after[mine],
                weight=idle_ns,
                table="calls",
                remedy=REMEDY,
                cause="host_work",
                saving=Saving(host=(HostWork(Spans.of(process, start_ns, end_ns), HOST_CODE),)),
            )
        )
    return findings


def _is_mode(frame: Frame, view: View) -> bool:
    """A mode of yours may have any name."""
    owner, _, method = frame.function.rpartition(".")
    return method in METHODS and ("Mode" in owner or view.ownership.is_own(frame.file, False))


def _neighbours(view: View, inside: Mask, long_ns: float) -> tuple[I64, I64]:
    """Calls inside a mode that follow each other on a thread, with not too much host code in between."""
    after = view.next_call
    rows = np.flatnonzero(inside & (after >= 0))
    rows = rows[inside[after[rows]]]
    between_ns = view.calls.start_ns[after[rows]] - view.calls.end_ns[rows]
    rows = rows[(between_ns > 0) & (between_ns < long_ns)].astype(np.int64)
    return rows, after[rows]


RULE = Rule(
    "python_modes",
    "Does each operator go through Python?",
    (SHARE, LONG),
    check,
    __doc__ or "",
    time=Time.IDLE,
)
