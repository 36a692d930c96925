# SPDX-License-Identifier: Apache-2.0
"""Why does the GPU idle? Each piece of idle time has a cause and a line; the most expensive ones are listed.

Every gap is split where the launching host thread changed its activity: the profiler itself, loading and
compiling GPU code, allocation, synchronisation, data loading, the GIL, blocking system calls, garbage
collection, compilation, or plain code between two of your lines. The innermost activity is the cause. `gaps`
shows all of them. A long piece of plain code gets the line at which most samples found the thread (`record`
takes samples), else the next line that launched something.

Not listed: the pause between queued operations, launch latency, and short pauses between two launches.
`tiny_kernels` and `bound` report those.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.gaps.causes import CAUSES, Cause
from profiling_lab.analysis.gaps.host_lines import HostLine, host_lines
from profiling_lab.analysis.gaps.pieces import GapPieces
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import FROM_THE_START, Abstain, Finding, RuleResult, Threshold, ms, percent
from profiling_lab.rules.gap_words import ENDED_BY_A_LAUNCH, REMEDIES, WORDS
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "idle for one cause at one line", 0.01, "of the recording, at least", "ours")
UNKNOWN = Threshold(
    "unknown", "idle time without a cause", 0.5, "of all, from: the rule abstains", "ours: most"
)
LONG = Threshold(
    "long", "plain code between two launches", 500_000, "ns, from", "ours: no launch takes so long"
)


def check(view: View) -> RuleResult:
    pieces = view.gap_pieces
    idle_ns = pieces.end_ns - pieces.start_ns
    if not idle_ns.sum():
        return ()
    told = np.isin(pieces.cause, [int(cause) for cause in REMEDIES])
    told &= pieces.device < len(view.devices)  # a window may hold a device that does nothing in it
    told &= ~np.isin(pieces.cause, ENDED_BY_A_LAUNCH) | (idle_ns >= view[LONG])
    groups = dict(grouped(np.flatnonzero(told), _group(view, pieces)[told]))
    worth = {
        key: rows for key, rows in groups.items() if idle_ns[rows].sum() >= 0.1 * view[SHARE] * view.span_ns
    }
    seen = host_lines(pieces, worth, view.samples, view.ownership)
    sums: dict[tuple[Cause, Frame | None, bool], list[npt.NDArray[np.intp]]] = {}
    for key, rows in worth.items():
        sums.setdefault(_named(view, pieces, rows, seen.get(key)), []).append(rows)
    findings = [
        finding
        for (cause, frame, exact), parts in sums.items()
        if (finding := _finding(view, pieces, np.concatenate(parts), cause, frame, exact, idle_ns))
    ]
    unknown = int(idle_ns[np.isin(pieces.cause, (Cause.LATE_START, Cause.NOT_RECORDED))].sum())
    if not findings and unknown >= view[UNKNOWN] * idle_ns.sum():
        return Abstain(
            f"{ms(unknown)} of {ms(int(idle_ns.sum()))} idle time have no known cause", FROM_THE_START
        )
    return findings


def _named(
    view: View, pieces: GapPieces, rows: npt.NDArray[np.intp], seen: HostLine | None
) -> tuple[Cause, Frame | None, bool]:
    """The cause of a group, its line, and whether the host was in that line."""
    cause = Cause(int(pieces.cause[rows[0]]))
    if cause in (Cause.HOST_CODE, Cause.AFTER_WAIT) and seen is not None:
        if seen.rival is not None:
            return Cause.GIL_WAIT, seen.rival, True
        return Cause.DATA_LOADING if seen.in_loader else Cause.HOST_CODE, seen.frame, True
    frame = view.place(int(view.place_of_stack(pieces.stack[rows[:1]])[0]))
    return cause, frame, bool(pieces.exact[rows].all())


def _finding(
    view: View,
    pieces: GapPieces,
    rows: npt.NDArray[np.intp],
    cause: Cause,
    frame: Frame | None,
    exact: bool,
    idle_ns: I64,
) -> Finding | None:
    cost_ns = int(np.bincount(pieces.device[rows], weights=idle_ns[rows]).max())  # of one GPU
    if cost_ns < view[SHARE] * view.span_ns:
        return None
    ended, weight = _ended(view, pieces, rows, idle_ns[rows])
    where = f", {'at' if exact else 'before'} this line" if frame else ""
    if cause == Cause.GIL_WAIT:
        where = ", while another thread runs Python at this line" if frame else ""
    mostly = f" (mostly {pieces.mostly(rows)})" if cause == Cause.CUDA_CALL else ""
    return view.finding(
        f"the GPU idled {ms(cost_ns)}, {percent(cost_ns / view.span_ns)} of the recording: "
        f"{CAUSES[cause]}{mostly}{where}",
        cost_ns=cost_ns,
        cost_of="GPU idle",
        place=frame,
        rows=ended,
        weight=weight,
        remedy=REMEDIES[cause],
        confidence="high" if exact and cause != Cause.GIL_WAIT else "medium",
        cause=WORDS.get(cause, ""),
    )


def _group(view: View, pieces: GapPieces) -> I64:
    """Pieces with the same cause between the same two lines form one group."""
    after, stack = view.place_of_stack(pieces.after), view.place_of_stack(pieces.stack)
    lines = int(max(after.max(initial=0), stack.max(initial=0))) + 2
    key = (after.astype(np.int64) + 1) * lines + stack + 1
    return np.asarray(key * len(Cause) + pieces.cause, dtype=np.int64)


def _ended(view: View, pieces: GapPieces, rows: I64, idle_ns: I64) -> tuple[I64, I64]:
    """The operations that the GPU waited for, and the time for each."""
    operations, found = view.operations, []
    for number, mine in grouped(np.arange(len(rows)), pieces.device[rows]):
        its = view.devices[number][2]
        its = its[np.argsort(operations.start_ns[its], kind="stable")]
        until = np.searchsorted(operations.start_ns[its], pieces.end_ns[rows[mine]], "left")
        found.append((its[np.minimum(until, len(its) - 1)], idle_ns[mine]))
    ended, waited_ns = (np.concatenate(column) for column in zip(*found, strict=True))
    operation, row = np.unique(ended, return_inverse=True)  # a gap has several pieces
    return operation, np.bincount(row, weights=waited_ns).astype(np.int64)


_THRESHOLDS = (SHARE, UNKNOWN, LONG)
RULE = Rule("gap_cause", "Why does the GPU idle?", _THRESHOLDS, check, __doc__ or "", time=Time.IDLE)
