# SPDX-License-Identifier: Apache-2.0
"""Why does the GPU idle? Each piece of idle time has a cause and a line; the most expensive ones are listed.

Every gap is split where the launching host thread changed its activity: the profiler itself, loading and
compiling GPU code, allocation, synchronisation, data loading, the GIL, blocking system calls, garbage
collection, compilation, or plain code between two of your lines. The innermost activity is the cause. `gaps`
shows all of them. A long piece of plain code gets the line at which most samples found the thread (`record`
takes samples), else the next line that launched something. Host code of one function is one finding.
What is saved is said as if its thread had none of the work left.

Not listed: the pause between queued operations, launch latency, and short pauses between two launches.
`tiny_kernels` and `bound` report those. At lines that launch mostly copies within the GPU or of results to
the host, as a deep copy of a model or a metric in Python does, no other rule reports them: there all of it is
host code.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.gaps import by_line
from profiling_lab.analysis.gaps.causes import CAUSES, Cause
from profiling_lab.analysis.gaps.host_lines import host_lines
from profiling_lab.analysis.gaps.pieces import GapPieces
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.callers import callers
from profiling_lab.rules.finding import FROM_THE_START, Abstain, Finding, RuleResult, Threshold, ms, percent
from profiling_lab.rules.gap_pieces import around, host_saving, remedy, reported
from profiling_lab.rules.gap_words import ENDED_BY_A_LAUNCH, WORDS
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "idle for one cause at one line", 0.01, "of the recording, at least", "ours")
UNKNOWN = Threshold("unknown", "idle time without a cause", 0.5, "of all, from: it abstains", "ours: most")
LONG = Threshold("long", "plain code between two launches", 500_000, "ns, from", "ours: above any launch")


def check(view: View) -> RuleResult:
    pieces = view.gap_pieces
    if not (pieces.end_ns > pieces.start_ns).any():
        return ()
    line_before, line_after = view.place_of_stack(pieces.after), view.place_of_stack(pieces.stack)
    pieces, idle_ns, told = reported(view, line_after, view[LONG])
    groups = dict(
        grouped(np.flatnonzero(told), by_line.groups_by_line(pieces, line_before, line_after)[told])
    )
    least_ns = 0.1 * view[SHARE] * view.span_ns
    worth = {key: rows for key, rows in groups.items() if idle_ns[rows].sum() >= least_ns}
    seen = host_lines(pieces, worth, view.samples, view.ownership, view.trace.source_texts)
    sums: dict[by_line.CauseAtLine, list[by_line.Rows]] = {}
    for key, rows in worth.items():
        found = by_line.cause_at_line(pieces, rows, seen.get(key), view.place(int(line_after[rows[0]])))
        sums.setdefault(found, []).append(rows)
    findings = [
        finding
        for at, rows, lines in by_line.by_function(sums, idle_ns, callers(view))
        if (finding := _finding(view, pieces, rows, at, lines, idle_ns))
    ]
    unknown = int(idle_ns[np.isin(pieces.cause, (Cause.LATE_START, Cause.NOT_RECORDED))].sum())
    if not findings and unknown >= view[UNKNOWN] * (all_ns := int(idle_ns.sum())):
        return Abstain(f"{ms(unknown)} of {ms(all_ns)} idle time have no known cause", FROM_THE_START)
    return findings


def _finding(
    view: View, pieces: GapPieces, rows: by_line.Rows, at: by_line.CauseAtLine, lines: int, idle_ns: I64
) -> Finding | None:
    cause, frame, exact = at
    cost_ns = int(np.bincount(pieces.device[rows], weights=idle_ns[rows]).max())  # of one GPU
    if cost_ns < view[SHARE] * view.span_ns:
        return None
    of_device = [device[2] for device in view.devices]
    awaited, weight = by_line.awaited_operations(view.operations, of_device, pieces, rows)
    at_line = f"{'at' if exact else 'before'} this line"
    if cause == Cause.GIL_WAIT:
        at_line = "while another thread runs Python at this line"
    several = f"at {lines} lines of one function, most of it " if lines > 1 else ""
    where = f", {several}{at_line}" if frame else ""
    mostly = f" (mostly {pieces.mostly(rows)})" if cause == Cause.CUDA_CALL else ""
    once = cause in ENDED_BY_A_LAUNCH and view.in_one_step(pieces.start_ns[rows], idle_ns[rows])
    return view.finding(
        f"the GPU idled {ms(cost_ns)}, {percent(cost_ns / view.span_ns)} of the recording: "
        f"{CAUSES[cause]}{mostly}{where}" + ", all of it in one step" * once,
        cost_ns=cost_ns,
        cost_of="GPU idle",
        place=frame,
        rows=awaited,
        weight=weight,
        remedy=remedy(view, cause, frame if exact else None, awaited, weight),
        confidence="high" if exact and cause != Cause.GIL_WAIT else "medium",
        cause=WORDS.get(cause, ""),
        once=once,
        around=around(view, pieces, rows, frame if exact else None, awaited, weight),
        saving=host_saving(pieces, rows, cause),
    )


_SET = (SHARE, UNKNOWN, LONG)
RULE = Rule("gap_cause", "Why does the GPU idle?", _SET, check, __doc__ or "", time=Time.IDLE, of_host=True)
