# SPDX-License-Identifier: Apache-2.0
"""Are gradients filled with zeros, only to be added to?

zero_grad(set_to_none=False) and `p.grad.zero_()` write zeros, and the next backward reads them to add what it
has computed: for each gradient one pass that writes, and one that reads twice and writes. Where a parameter
has no gradient, autograd keeps the one that it has computed, without any pass. The rule counts what zero_grad
and such lines fill, and the additions of AccumulateGrad in the first pass of backward behind them. Those in
later passes add up the parts of a batch, and are needed. A CUDA graph needs gradients that stay where they
are: what it launches is not seen here.
"""

from __future__ import annotations

import re

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.passes import Passes, backward_passes, of_nodes, undecided
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.stale_gradients import ADDS, in_first_passes
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, OperationKind

SHARE = Threshold("share", "zeros and what is added to them take", 0.03, "of the GPU time, at least", "ours")
FILLS = r"fillfunctor|zerofunctor"
ZEROES = re.compile(r"\bgrad(\.data|\.detach_?\(\))*\.zero_\(")
"""in the text of a line"""
REMEDY = "zero_grad(set_to_none=True), the default, or p.grad = None: backward then keeps what it computes"


def check(view: View) -> RuleResult:
    passes = backward_passes(view)
    if (abstains := undecided(passes)) is not None:
        return abstains
    fills, duration = _fills(view), view.operations.duration_ns
    adds = _first_additions(view, passes, fills)
    rows = np.concatenate([fills, adds])
    total_ns = int(duration[rows].sum())
    if not (len(fills) and len(adds)) or total_ns < view[SHARE] * view.gpu_ns:
        return ()
    return [
        view.finding(
            f"gradients are filled with zeros, and {len(adds):,} times what backward computes is added to "
            f"zeros: {ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of the zeros and the additions",
            place=view.hottest_line(fills, duration[fills]),
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            saving=fewer(rows),
        )
    ]


def _fills(view: View) -> I64:
    """What zero_grad, and lines that do its work, fill."""
    found, texts = view.attribution, view.trace.source_texts
    places = (view.place(number) for number in range(view.lines))
    told = [ZEROES.search(texts.get((at.file, at.line), "")) is not None if at else False for at in places]
    clears = view.trace.stacks.nearest(lambda frame: frame.function.endswith("zero_grad"))[found.stack] > 0
    clears |= np.array([*told, False])[view.operation_place]
    fills = view.kernels_named(FILLS) | (view.operations.kind == OperationKind.SET)
    return np.flatnonzero(clears & fills & view.has_call & (found.phase == Phase.FORWARD))


def _first_additions(view: View, passes: Passes, fills: I64) -> I64:
    """Those in the first pass of a thread after its gradients were filled."""
    calls, call = view.calls, view.attribution.call
    adds = (view.kernels_named(ADDS) & of_nodes(view, "AccumulateGrad"))[passes.rows]
    found = [fills[:0]]
    for process, mine in grouped(np.arange(len(passes)), calls.process[call[passes.rows]]):
        its = call[fills][calls.process[call[fills]] == process]
        after = np.searchsorted(np.sort(calls.start_ns[its]), passes.start_ns[mine], "right")
        found.append(passes.rows[mine[adds[mine] & (after > 0) & in_first_passes(passes, mine, after)]])
    return np.concatenate(found)


RULE = Rule(
    "zeroed_gradients",
    "Are gradients filled with zeros, only to be added to?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
