# SPDX-License-Identifier: Apache-2.0
"""Why does the GPU idle? Each piece of idle time has a cause and a line: the dear ones are named.

Every gap is cut where the host's thread changed what it did: the profiler itself, loading and compiling GPU
code, allocation, waits, data loading, the interpreter's lock, blocking calls of the system, garbage
collection, or plain code between two of your lines; the innermost cause wins (`gaps` shows all of them). What
needs no cause, the pause between queued operations and the latency of a launch, is left out here.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.gaps.causes import CAUSES, Cause
from profiling_lab.analysis.gaps.pieces import GapPieces, gap_pieces
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import FROM_THE_START, Abstain, Threshold, Verdict, ms, percent
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I32, I64

SHARE = Threshold("share", "idle for one cause at one line", 0.01, "of the recording, at least", "ours")
UNKNOWN = Threshold("unknown", "idle time without a cause", 0.5, "of all, from: cannot tell", "ours: most")
_CAUSES = 32  # more than there are

REMEDIES = {
    Cause.PROFILER: "none: that is the recording; record less, and trust the other causes more",
    Cause.CODE_LOADING: "warm up before you measure; CUDA_MODULE_LOADING=EAGER, or keep compiled kernels",
    Cause.START_UP: "none: it is paid once; warm up before you measure, or leave it out of the recording",
    Cause.ALLOCATOR: "allocate once and reuse (see allocation_churn)",
    Cause.QUEUE_FULL: "nothing here: the GPU is behind the host",
    Cause.WAIT: "wait less often, and launch the next work before you wait (see sync_calls)",
    Cause.AFTER_WAIT: "launch the next work before you wait, or wait less often (see sync_calls)",
    Cause.DATA_LOADING: "load in the background: num_workers, pin_memory, prefetch_factor (see dataloader)",
    Cause.GIL_WAIT: "move the other thread's Python work to a process",
    Cause.GARBAGE_COLLECTION: "gc.freeze() after set-up, and gc.disable() with gc.collect() between steps",
    Cause.OFF_CPU: "leave the launching thread a CPU: fewer workers, fewer threads (OMP_NUM_THREADS)",
    Cause.SYSTEM_CALL: "keep files, sockets and locks off the thread that launches",
    Cause.CUDA_CALL: "launches: warm up, the first are slow, and launch less (CUDA graph, torch.compile); "
    "any other call: make it once, before the loop",
    Cause.HOST_CODE: "do it between steps or in another thread; compile the step, or use a CUDA graph",
    Cause.EVENT_WAIT: "make what it waits for shorter or earlier (see stream_chain)",
}


def check(view: View) -> Verdict:
    pieces = gap_pieces(view.trace)
    idle_ns = pieces.end_ns - pieces.start_ns
    if not idle_ns.sum():
        return ()
    told = np.isin(pieces.cause, [int(cause) for cause in REMEDIES])
    told &= pieces.device < len(view.devices)  # a window may hold a device that does nothing in it
    place = view.place_of_stack(pieces.stack)
    findings = []
    for key, rows in grouped(np.flatnonzero(told), _key(pieces.cause, place)[told]):
        cost_ns = int(np.bincount(pieces.device[rows], weights=idle_ns[rows]).max())  # of one GPU
        if cost_ns < view[SHARE] * view.span_ns:
            continue
        cause = Cause(key % _CAUSES)
        where = view.place(key // _CAUSES - 1)
        at = "at" if where and pieces.exact[rows].all() else "on the way to"
        ended, weight = _ended(view, pieces, rows, idle_ns[rows])
        findings.append(
            view.finding(
                f"the GPU idled {ms(cost_ns)}, {percent(cost_ns / view.span_ns)} of the recording: "
                f"{CAUSES[cause]}{f' (mostly {pieces.mostly(rows)})' if cause == Cause.CUDA_CALL else ''}"
                f"{f', {at} this line' if where else ''}",
                cost_ns=cost_ns,
                cost_of="GPU idle",
                place=where,
                rows=ended,
                weight=weight,
                remedy=REMEDIES[cause],
                confidence="high" if cause in (Cause.PROFILER, Cause.ALLOCATOR, Cause.WAIT) else "medium",
            )
        )
    unknown = int(idle_ns[np.isin(pieces.cause, (Cause.LATE_START, Cause.NOT_RECORDED))].sum())
    if not findings and unknown >= view[UNKNOWN] * idle_ns.sum():
        return Abstain(f"{ms(unknown)} of {ms(int(idle_ns.sum()))} idle time have no cause", FROM_THE_START)
    return findings


def _key(cause: I32, place: I32) -> I64:
    return np.asarray((place.astype(np.int64) + 1) * _CAUSES + cause)


def _ended(view: View, pieces: GapPieces, rows: I64, idle_ns: I64) -> tuple[I64, I64]:
    """The operations that the GPU waited for, and how long for each."""
    operations, found = view.operations, []
    for number, mine in grouped(np.arange(len(rows)), pieces.device[rows]):
        its = view.devices[number][2]
        its = its[np.argsort(operations.start_ns[its], kind="stable")]
        until = np.searchsorted(operations.start_ns[its], pieces.end_ns[rows[mine]], "left")
        found.append((its[np.minimum(until, len(its) - 1)], idle_ns[mine]))
    ended, waited_ns = (np.concatenate(column) for column in zip(*found, strict=True))
    operation, row = np.unique(ended, return_inverse=True)  # a gap has several pieces
    return operation, np.bincount(row, weights=waited_ns).astype(np.int64)


RULE = Rule("gap_cause", "Why does the GPU idle?", (SHARE, UNKNOWN), check, __doc__ or "")
