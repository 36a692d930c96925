# SPDX-License-Identifier: Apache-2.0
"""Is a CUDA graph captured again and again?

A capture waits for the GPU, runs the code once without the GPU, and makes a graph of it: that takes far
longer than one replay, so it is worth it for a graph that is replayed often. The stacks of the calls tell
where a capture begins (torch/cuda/graphs.py); launches in it start nothing on the GPU, and it ends before the
next call that does. The cost is what the GPU idles meanwhile. In the steps there should be no captures.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.kinds import HOST_CODE
from profiling_lab.analysis.critical_path.savings import HostWork, Saving
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import idle_within
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64
from profiling_lab.trace.cuda_calls import CudaCall
from profiling_lab.trace.spans import Spans

SHARE = Threshold("share", "GPU idle during captures", 0.02, "of the recording, at least", "ours: short_runs")
FEW = Threshold("few", "captures in the steps", 3, "at least", "ours: they recur")
FILE, BEGINNING = "torch/cuda/graphs.py", ("__enter__", "capture_begin")
REMEDY = "capture once for each size, and replay: copy what changes into the tensors of the capture"


def check(view: View) -> RuleResult:
    if len(view.trace.stacks) == 1:
        return Abstain("the trace has no Python stacks", STACKS)
    begin, end = _captures(view)
    if not len(begin) or len(begin) < view[FEW]:
        return ()
    calls = view.calls
    start_ns, end_ns, process = calls.start_ns[begin], calls.start_ns[end], calls.process[begin]
    idle_ns = idle_within(view, process, start_ns, end_ns)
    cost_ns = int(idle_ns.sum())
    if cost_ns < view[SHARE] * view.span_ns:
        return ()
    replays = int(view.calls_of(CudaCall.GRAPH_LAUNCH).sum())
    inside = [
        np.flatnonzero(
            (calls.thread == calls.thread[b]) & (calls.start_ns >= first) & (calls.start_ns < last)
        )
        for b, first, last in zip(begin, start_ns, end_ns, strict=True)
    ]
    place = np.bincount(view.call_place[begin] + 1, weights=idle_ns)
    return [
        view.finding(
            f"{len(begin)} captures of CUDA graphs for {replays} replays: the GPU idled {ms(cost_ns)}, "
            f"{percent(cost_ns / view.span_ns)} of the recording, during them",
            cost_ns=cost_ns,
            cost_of="GPU idle during captures",
            place=view.place(int(place.argmax()) - 1),
            rows=begin,
            weight=idle_ns,
            table="calls",
            remedy=REMEDY,
            cause="host_work",
            saving=Saving(
                calls=np.concatenate(inside), host=(HostWork(Spans.of(process, start_ns, end_ns), HOST_CODE),)
            ),
        )
    ]


def _captures(view: View) -> tuple[I64, I64]:
    """The first call of each, and the first one behind it that starts something on the GPU. A wait or a fill
    before the capture begins belongs to it.
    """
    calls, stacks = view.calls, view.trace.stacks
    opens = (stacks.passes_through((FILE,), BEGINNING) > 0)[calls.stack]
    starts = np.zeros(len(calls), dtype=bool)
    starts[view.attribution.call[view.has_call]] = True
    begin, end = [], []
    for _, mine in grouped(np.arange(len(calls)), calls.thread):
        mine = mine[np.argsort(calls.start_ns[mine], kind="stable")]
        others, marks = np.flatnonzero(starts[mine] & ~opens[mine]), np.flatnonzero(opens[mine])
        behind = np.searchsorted(others, marks)
        known, first = np.unique(behind[behind < len(others)], return_index=True)
        begin.append(mine[marks[first]])
        end.append(mine[others[known]])
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *begin]), np.concatenate([none, *end])


RULE = Rule(
    "graph_capture",
    "Is a CUDA graph captured again and again?",
    (SHARE, FEW),
    check,
    __doc__ or "",
    time=Time.IDLE,
)
