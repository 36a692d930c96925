# SPDX-License-Identifier: Apache-2.0
"""Host synchronisation by line: the GPU's idle time after it, and how long the host was blocked."""

from __future__ import annotations

from collections import Counter

import numpy as np

from profiling_lab.analysis.host.waits import VALUE_BYTES
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import Finding, Threshold, ms, percent
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I64
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
    """One finding per line whose waits cost enough. `calls` are rows of waiting calls."""
    findings = []
    for number, mine in grouped(calls, view.wait_place(calls)):
        waited_ns = _within_the_recording(view, mine)
        idle_ns = view.host_wait_idle[mine]
        # Several threads wait at the same time: the one that waited longest counts.
        by_thread = [int(waited_ns[rows].sum()) for _, rows in _by_thread(view, mine)]
        longest, threads = max(by_thread), "the thread that waited longest " if len(by_thread) > 1 else ""
        dense = len(mine) > 1 and longest >= view[DENSITY] * view.span_ns  # one wait ends what was measured
        if int(idle_ns.sum()) < view[IDLE] * view.span_ns and not dense:
            continue
        (name, _), *others = Counter(view.calls.name[mine].tolist()).most_common()
        findings.append(
            view.finding(
                what=f"{len(mine)} {what} ({view.calls.names[name]}{', ...' if others else ''}): the host "
                f"waited {ms(int(waited_ns.sum()))}, {threads}{percent(longest / view.span_ns)} of the "
                f"recording; the GPU then idled {ms(int(idle_ns.sum()))}",
                cost_ns=int(idle_ns.sum()),
                cost_of="GPU idle after the waits",
                place=view.place(number),
                table="calls",
                rows=mine,
                weight=idle_ns if idle_ns.any() else waited_ns,
                remedy=remedy,
            )
        )
    return findings


def _within_the_recording(view: View, rows: I64) -> I64:
    """How long each of these calls waited within the recorded GPU activity. Before the first and after the
    last operation there is no GPU time to lose.
    """
    first, last = int(view.operations.start_ns.min()), int(view.operations.end_ns.max())
    calls = view.calls
    return np.asarray(calls.end_ns[rows].clip(first, last) - calls.start_ns[rows].clip(first, last))


def _by_thread(view: View, rows: I64) -> list[tuple[int, I64]]:
    return list(grouped(np.arange(len(rows)), view.calls.thread[rows]))
