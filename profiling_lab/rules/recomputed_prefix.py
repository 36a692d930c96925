# SPDX-License-Identifier: Apache-2.0
"""Is all that came before computed again for each new position of a sequence?

A network that writes a word, a note or a frame at a time needs the earlier positions only in its attention.
Their keys and values can be kept. Without such a cache each call computes all positions again, so that all
its kernels grow by one position from call to call. The rule finds such loops by the kernels that normalise
(see longer_calls.py). All but the newest position is saved, and the first call of a loop is not. A kernel
takes a few microseconds however little it does, and its launch stays; for each attention two copies add
the newest key and value to those that are kept. If later positions change what earlier
ones give, as without a causal mask, nothing can be kept, so the severity is at most medium.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import CALLS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import FUSED_ATTENTION
from profiling_lab.rules.longer_calls import longer_calls
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.small_grids import blocks_of
from profiling_lab.rules.view import View

SHARE = Threshold("share", "such calls take", 0.1, "of the GPU time, at least", "ours")
TIMES = Threshold("times", "calls on one position more", 6, "at least", "ours: fewer may be chance")
SHORTEST_NS = 3_000
"""of a kernel that reads some weights for a few positions"""
KEEPING = 2
"""copies, of the newest key and of its value"""
REMEDY = (
    "keep the keys and values of earlier positions (use_cache=True, a KV cache) and give the network the "
    "newest position only, if attention is causal"
)


def check(view: View) -> RuleResult:
    if not (view.has_call & np.isfinite(blocks_of(view))).any():
        return Abstain("the trace does not say which calls launched how many blocks", CALLS)
    found = longer_calls(view, int(view[TIMES]))
    if found is None:
        return ()
    duration = view.operations.duration_ns
    again = np.flatnonzero(found.longer)
    rows = np.concatenate([found.of_call[number] for number in again])
    newest = np.repeat(1 / found.positions[again], [len(found.of_call[number]) for number in again])
    left = np.minimum(np.maximum(newest, SHORTEST_NS / np.maximum(duration[rows], 1)), 1.0)
    attention = view.kernels_named(rf"{FUSED_ATTENTION}|softmax")[rows]
    launches = np.full(len(rows), 1 + KEEPING * attention.mean())
    total_ns = int((duration[rows] * (1 - left)).sum())
    if total_ns < view[SHARE] * view.gpu_ns:
        return ()
    place = view.place(int(view.place_of_stack(np.array([found.stack], dtype=np.int32))[0]))
    return [
        view.finding(
            f"{len(again):,} calls compute one position more than the call before, and all earlier ones "
            f"again, from {found.positions.min():.0f} to {found.positions.max():.0f} positions: "
            f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of these calls",
            place=place or view.hottest_line(rows, duration[rows]),
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            confidence="medium",
            wins_frac=total_ns / max(int(duration[rows].sum()), 1),
            saving=Saving(rows, left, launches),
        )
    ]


RULE = Rule(
    "recomputed_prefix",
    "Is all that came before computed again for each new position?",
    (SHARE, TIMES),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
