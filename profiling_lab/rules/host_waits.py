# SPDX-License-Identifier: Apache-2.0
"""Host synchronisation by line: the GPU's idle time after it, and how long the host was blocked."""

from __future__ import annotations

from collections import Counter

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving, fewer
from profiling_lab.analysis.host.waits import VALUE_BYTES
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.callers import work_of_line
from profiling_lab.rules.finding import Finding, Threshold, ms, percent
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.cuda_calls import SYNCS

IDLE = Threshold(
    "idle", "GPU idle after the waits", 0.01, "of the recording, at least", "ours: less is within the noise"
)
DENSITY = Threshold(
    "density", "host waiting", 0.15, "of the recording, at least", "nsys-ai: synchronisation dominates"
)
TINY_COPY = Threshold(
    "tiny_copy",
    "size of a value that the host reads",
    VALUE_BYTES,
    "bytes, at most",
    "ours: a scalar or a few",
)
SELECTING, OTHERWISE = r"deviceselect|nonzero", 0.3
"""kernels that look for what a mask selects, and which part other ways take: that is experience"""


def reads_of_a_value(view: View) -> tuple[I64, I64]:
    """Small copies to the host after which the same thread synchronises: (operations, waiting calls)."""
    call = view.attribution.call
    small = view.named("memcpy DtoH") & (view.operations.size_bytes <= view[TINY_COPY]) & view.has_call
    rows = np.flatnonzero(small)
    after = view.waits_at_once(call[rows])
    return rows[after >= 0], after[after >= 0]


def other_waits(view: View) -> I64:
    """Calls that wait for the GPU, except those that read a value."""
    waits: Mask = view.calls_of(*SYNCS)
    waits[reads_of_a_value(view)[1]] = False
    return np.flatnonzero(waits)


def wait_findings(view: View, calls: I64, what: str, remedy: str) -> list[Finding]:
    """One finding for each work of the program whose waits cost enough. `calls` are rows of waiting calls."""
    findings, line = [], view.wait_place(calls)
    for _, part in grouped(np.arange(len(calls)), work_of_line(view)[line]):
        mine = calls[part]
        waited_ns = _within_the_recording(view, mine)
        idle_ns = view.host_wait_idle[mine]
        # Several threads wait at the same time: the one that waited longest counts.
        by_thread = [int(waited_ns[rows].sum()) for _, rows in _by_thread(view, mine)]
        longest, threads = max(by_thread), "the thread that waited longest " if len(by_thread) > 1 else ""
        dense = len(mine) > 1 and longest >= view[DENSITY] * view.span_ns  # one wait ends what was measured
        # Processes that share a GPU have idle time each: the one that has most counts.
        idled_ns = int(np.bincount(view.calls.process[mine], weights=idle_ns).max())
        if idled_ns < view[IDLE] * view.span_ns and not dense:
            continue
        weight = idle_ns if idle_ns.any() else waited_ns
        lines = len(unique(line[part]))
        at = f" at {lines} lines of one function" if lines > 1 else ""
        (name, _), *others = Counter(view.calls.name[mine].tolist()).most_common()
        names = f"{view.calls.names[name]}{', ...' if others else ''}"
        findings.append(
            view.finding(
                what=f"{len(mine)} {what}{at} ({names}): the host waited {ms(int(waited_ns.sum()))}, "
                f"{threads}{percent(longest / view.span_ns)} of the recording; the GPU then idled "
                f"{ms(idled_ns)}",
                cost_ns=idled_ns,
                cost_of="GPU idle after the waits",
                place=view.place(int(np.bincount(line[part] + 1, weights=weight).argmax()) - 1),
                table="calls",
                rows=mine,
                weight=weight,
                remedy=remedy,
                saving=Saving(calls=mine) | made_for(view, mine),
            )
        )
    return findings


def made_for(view: View, waits: I64) -> Saving:
    """Without the operations that only these waits need: copies of values to the host, and what their line
    launched right before, to compute the values. Matrix products are the program's own work, and so is what
    comes before them: a line that calls a library launches all of a model between two reads. What selects by
    a mask reads how much that is; without that it is done in another way, as by torch.where.
    """
    call = view.attribution.call
    copies = np.flatnonzero(
        np.isin(call, view.copy_before[waits]) & view.named("memcpy DtoH") & view.has_call
    )
    copies = copies[view.operations.size_bytes[copies] <= view[TINY_COPY]]
    rows = np.flatnonzero(view.has_call)
    start_ns, thread = view.calls.start_ns[call[rows]], view.calls.thread[call[rows]]
    order = rows[np.lexsort((start_ns, thread))]
    ended = np.sort(view.calls.end_ns[view.waits])
    place, waited = view.operation_place[order], np.searchsorted(ended, view.calls.start_ns[call[order]])
    product = view.kernels_named(MATRIX)[order]
    same = np.stack([view.calls.thread[call[order]], place, waited, np.cumsum(product), product])
    run = np.zeros(len(view.operations), dtype=np.int64)
    run[order] = np.cumsum(np.append(True, (np.diff(same) != 0).any(axis=0))[: len(order)])
    rows = np.flatnonzero(view.has_call & np.isin(run, run[copies]) & (view.operation_place >= 0))
    selects = np.isin(run[rows], run[view.kernels_named(SELECTING)])
    return fewer(rows, np.where(selects, OTHERWISE, 0.0))


def _within_the_recording(view: View, rows: I64) -> I64:
    """How long each of these calls waited within the recorded GPU activity. Before the first and after the
    last operation there is no GPU time to lose.
    """
    first, last = int(view.operations.start_ns.min()), int(view.operations.end_ns.max())
    calls = view.calls
    return np.asarray(calls.end_ns[rows].clip(first, last) - calls.start_ns[rows].clip(first, last))


def _by_thread(view: View, rows: I64) -> list[tuple[int, I64]]:
    return list(grouped(np.arange(len(rows)), view.calls.thread[rows]))
