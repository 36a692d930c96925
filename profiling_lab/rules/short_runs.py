# SPDX-License-Identifier: Apache-2.0
"""Are there long runs of short kernels, from whatever lines? A CUDA graph replays such a run with one launch.

A run is a sequence of short kernels on one stream, without a long kernel and without a long gap. (In a long
gap the host does something that a graph cannot replay.) Kernels of a CUDA graph do not count.
`tiny_kernels` finds single lines; a run crosses lines, as a layer of many small operations does. The cost
is the GPU's idle time within the runs, which a graph saves.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import LONGER, Abstain, RuleResult, Threshold, ms, where
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, unique

SHORT = Threshold("short", "a kernel", 10_000, "ns, less than", "TraceLens: 10 µs")
RUN = Threshold("run", "kernels in a row", 20, "at least", "ours: about one layer")
LONG = Threshold("long", "a gap that ends a run", 1_000_000, "ns, from", "ours: as gpu_gaps")
SHARE = Threshold("share", "the GPU idles within runs", 0.02, "of the recording, from", "ours")
REMEDY = (
    "capture the run as a CUDA graph (torch.compile(mode='reduce-overhead'), torch.cuda.graph), or fuse it"
)


def check(view: View) -> RuleResult:
    operations, findings, enough = view.operations, [], False
    for process, device, rows in view.devices:
        busy = view.busy(rows).filled(view.unknown(process))
        kernels = rows[view.kernels[rows]]
        enough |= len(kernels) >= view[RUN]
        runs = [
            run
            for _, mine in grouped(kernels, operations.stream[kernels])
            for run in _runs(view, mine[np.argsort(operations.start_ns[mine], kind="stable")])
        ]
        if not runs:
            continue
        starts = np.array([operations.start_ns[run[0]] for run in runs], dtype=np.int64)
        ends = np.array([operations.end_ns[run[-1]] for run in runs], dtype=np.int64)
        # Concurrent runs on several streams share their idle time.
        together = Busy.of(starts, ends)
        idle_ns = int(busy.idle_within(together.start_ns, together.end_ns).sum())
        if idle_ns < view[SHARE] * view.span_ns:
            continue
        mine = np.concatenate(runs)
        place = view.hottest_line(mine, np.ones(len(mine), dtype=np.int64))
        findings.append(
            view.finding(
                f"{len(runs):,} runs of {len(mine) // len(runs):,} short kernels each on device {device}"
                f"{view.of_process(process)} take {ms(int((ends - starts).sum()))}; the GPU idles "
                f"{ms(idle_ns)} of it{where(place, '; this line launches most of them')}",
                cost_ns=idle_ns,
                cost_of="GPU idle within the runs",
                place=place,
                rows=mine,
                weight=operations.duration_ns[mine],
                remedy=REMEDY,
            )
        )
    if not enough:
        return Abstain(f"no GPU ran {view[RUN]:.0f} kernels", LONGER)
    return findings


def _runs(view: View, rows: I64) -> list[I64]:
    """The runs among the kernels of one stream, in time order."""
    start_ns, end_ns = view.operations.start_ns[rows], view.operations.end_ns[rows]
    short = end_ns - start_ns < view[SHORT]
    paused = np.append(False, start_ns[1:] - end_ns[:-1] >= view[LONG])
    # A run begins with a short kernel after a long kernel or gap, and ends before the next of these.
    begins = np.flatnonzero(short & (np.append(True, ~short[:-1]) | paused))
    ends = np.flatnonzero(short & (np.append(~short[1:] | paused[1:], True))) + 1
    # Launches of each: one for all kernels of a CUDA graph, one per kernel without a known call.
    length = ends - begins
    of_run = np.repeat(np.arange(len(begins)), length)
    mine = rows[np.arange(len(of_run)) - np.repeat(np.cumsum(length) - length - begins, length)]
    call = view.attribution.call[mine].astype(np.int64)
    launch = np.where(call >= 0, call, len(view.calls) + np.arange(len(call)))
    first = unique(of_run * (len(view.calls) + len(call) + 1) + launch)
    launches = np.bincount(first // (len(view.calls) + len(call) + 1), minlength=len(begins))
    return [rows[begins[i] : ends[i]] for i in np.flatnonzero(launches >= view[RUN]).tolist()]


RULE = Rule(
    "short_runs",
    "Are there long runs of short kernels?",
    (SHORT, RUN, LONG, SHARE),
    check,
    __doc__ or "",
    time=Time.IDLE,
    symptom=True,
    wins_frac=0.7,
)
