# SPDX-License-Identifier: Apache-2.0
"""Does backward go through the same graph several times?

Autograd numbers the nodes of a graph, and the recorder notes the node of each launch in backward. A node that
is evaluated in several passes was kept for them (retain_graph=True), as by `backward()` for each of several
losses, or a gradient for each output. The gradients of a sum are the sum of the gradients, so one pass is
enough where they are added up anyway. What the further passes take is saved. A pass that records itself to be
differentiated again (create_graph=True) is none of these. Who needs the gradients apart, to compare them or
to project one on another, needs the passes, so the severity is at most medium.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.passes import Passes, backward_passes, calling_line, makes_a_graph, undecided
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import unique

SHARE = Threshold("share", "further passes take", 0.05, "of the GPU time, at least", "ours: as short_runs")
MOSTLY_FRAC = 0.5
REMEDY = (
    "add the losses up and call backward() once: the gradients are the same; if each is needed by itself, "
    "batch them (is_grads_batched=True, torch.func.vmap)"
)


def check(view: View) -> RuleResult:
    passes = backward_passes(view)
    if (abstains := undecided(passes)) is not None:
        return abstains
    again = _again(view, passes)
    rows, duration = passes.rows[again], view.operations.duration_ns
    total_ns = int(duration[rows].sum())
    if not total_ns or total_ns < view[SHARE] * view.gpu_ns:
        return ()
    nodes = unique(passes.node[again & (passes.node >= 0)])
    evaluated = np.isin(passes.node, nodes)
    times = len(unique(passes.number[evaluated] * (passes.node.max() + 1) + passes.node[evaluated]))
    return [
        view.finding(
            f"backward goes through the same nodes {times / len(nodes):.1f} times: the further passes take "
            f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, in {len(rows):,} operations",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of all passes but the first",
            place=calling_line(view, passes.start_ns[again]) or view.hottest_line(rows, duration[rows]),
            rows=rows,
            weight=duration[rows],
            remedy=REMEDY,
            saving=fewer(rows),
        )
    ]


def _again(view: View, passes: Passes) -> Mask:
    """Per entry, whether it belongs to a pass that mostly evaluates nodes that were evaluated before."""
    counted = (passes.node >= 0) & ~makes_a_graph(view, passes)[passes.number]
    at, before = np.flatnonzero(counted), np.zeros(len(passes), dtype=bool)
    nodes, first = np.unique(passes.node[at], return_index=True)
    first_pass = np.append(np.full(int(passes.node.max()) + 1, -1), -1)
    first_pass[nodes] = passes.number[at[first]]
    before[at] = first_pass[passes.node[at]] != passes.number[at]
    took = view.operations.duration_ns[passes.rows].astype(np.float64)
    of_pass = np.bincount(passes.number, weights=took)
    mostly = np.bincount(passes.number, weights=took * before) > MOSTLY_FRAC * of_pass
    return np.asarray(mostly[passes.number] & (before | (passes.node < 0)))


RULE = Rule(
    "repeated_backward",
    "Does backward go through the same graph several times?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
