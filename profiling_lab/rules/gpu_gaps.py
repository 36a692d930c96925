# SPDX-License-Identifier: Apache-2.0
"""Is a GPU idle for a long time at once? Such a gap is visible in a timeline.

A gap is the idle time between two operations of one GPU, copies included. The time before the first and
after the last operation does not count, and profiler overhead is subtracted. nsys uses a threshold of 500
ms, which no gap within a training step reaches. The default here is 1 ms, the time of about a hundred
launches. `gap_cause` gives the reasons; `low_utilisation` finds many short gaps.
"""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.busy import Busy
from profiling_lab.rules.finding import LONGER, WORTH, Abstain, RuleResult, Threshold, ms, where
from profiling_lab.rules.profiler_overhead import OF_THE_PROFILER
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

LONG = Threshold("long", "a gap", 1_000_000, "ns, from", "nsys-ai: 1 ms (nsys: 500 ms, adjustable)")
REMEDY = "`profiling-lab gaps` shows what the host did in each gap"


def check(view: View) -> RuleResult:
    operations, findings, several = view.operations, [], False
    for process, device, rows in view.devices:
        several |= len(rows) > 1
        none = np.zeros(len(rows), dtype=np.int32)
        starts, ends, _, ends_it = _analysis.gaps_between(
            operations.start_ns[rows], operations.end_ns[rows], none
        )
        idle_ns = ends - starts - _profiler(view, process).busy_within(starts, ends)
        unknown = view.unknown(process)
        idle_ns -= Busy(unknown.start_ns, unknown.end_ns).busy_within(starts, ends)
        long = idle_ns >= view[LONG]
        after, idle_ns = rows[ends_it[long]], idle_ns[long]
        total_ns = int(idle_ns.sum())
        if not len(after) or total_ns < view[WORTH] * view.span_ns:
            continue
        longest = int(idle_ns.argmax())
        place = view.place(int(view.operation_place[after[longest]]))
        findings.append(
            view.finding(
                f"device {device}{view.of_process(process)} was idle "
                f"{'once' if len(after) == 1 else f'{len(after):,} times'} for {ms(view[LONG])} or "
                f"more, {ms(total_ns)} in total; the longest gap is "
                f"{ms(int(idle_ns[longest]))}{where(place, ', and ends with this line')}",
                cost_ns=total_ns,
                cost_of="GPU idle in long gaps",
                place=place,
                rows=after,
                weight=idle_ns,
                remedy=REMEDY,
            )
        )
    if not several:
        return Abstain("no GPU has two operations, so there is no gap", LONGER)
    return findings


def _profiler(view: View, process: int) -> Busy:
    overheads = view.trace.overheads
    mine = (overheads.process == process) & np.isin(overheads.kind, OF_THE_PROFILER)
    no: I64 = np.zeros(0, dtype=np.int64)
    return Busy.of(overheads.start_ns[mine], overheads.end_ns[mine]) if mine.any() else Busy(no, no)


RULE = Rule(
    "gpu_gaps",
    "Is a GPU idle for a long time at once?",
    (LONG, WORTH),
    check,
    __doc__ or "",
    time=Time.IDLE,
    symptom=True,
    wins_frac=0.7,
)
