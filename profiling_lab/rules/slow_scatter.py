# SPDX-License-Identifier: Apache-2.0
"""Which lines add rows by index much more slowly than they read them by index?

The backward of reading rows (`x[i]`, `index_select`) adds to the same rows, and the backward of `index_add`
reads them. Both move the same bytes, so that the two phases of one line can be compared. Adding is slow where
equal indices are added one after the other: torch sorts the indices for `x[i]` in backward, and for all of
these if it has to be deterministic; and few rows that all indices share have to wait for each other. The cost
is the time above that of reading. Lines of one function are one finding, at the line that costs most. Where
nothing reads the same rows, `index_put_(accumulate=True)` is found by the sort before it: adding at once
takes about as long as one pass of that.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.sorted_adds import sorted_adds
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import unique

SLOWER = Threshold("slower", "adding rows takes", 3, "times as long as reading them, from", "ours")
SHARE = Threshold("share", "adding rows above the time of reading", 0.03, "of the GPU time, from", "ours")
ADDS = r"indexing_backward|indexFunc(Small|Large)Index|index_put_\w*kernel|index_add"
READS = r"(vectorized|index)_gather|indexSelect(Small|Large)Index|index_elementwise_kernel|index_kernel_impl"
REMEDY = (
    "let equal indices be added at once: without torch.use_deterministic_algorithms(True), with index_select "
    "instead of x[i], or with equal indices merged before"
)


def check(view: View) -> RuleResult:
    duration, place, phase = view.operations.duration_ns, view.operation_place, view.attribution.phase
    known = (place >= 0) & np.isin(phase, (Phase.FORWARD, Phase.BACKWARD))
    adds, reads = view.kernels_named(ADDS) & known, view.kernels_named(READS) & known
    side = 2 * place + (phase == Phase.BACKWARD)  # a line in one of the two phases
    sides = 2 * view.lines
    adding_ns = np.bincount(side[adds], weights=duration[adds], minlength=sides)
    reading_ns = np.bincount(side[reads], weights=duration[reads], minlength=sides)
    reading_ns = reading_ns.reshape(-1, 2)[:, ::-1].ravel()  # in the other phase
    slow = (reading_ns > 0) & (adding_ns >= view[SLOWER] * reading_ns)
    rows = np.flatnonzero(adds)
    rows = rows[slow[side[rows]]]
    findings = []
    for _, mine in grouped(rows, view.function_of_line[place[rows]]):
        of = unique(side[mine])
        total_ns, same_ns = int(adding_ns[of].sum()), int(reading_ns[of].sum())
        above_ns = (duration[mine] * (1 - reading_ns[side[mine]] / adding_ns[side[mine]])).astype(np.int64)
        if above_ns.sum() < view[SHARE] * view.gpu_ns:
            continue
        lines = len(unique(place[mine]))
        where = f" at {lines} lines of one function" if lines > 1 else ""
        findings.append(
            view.finding(
                f"{len(mine):,} kernels add rows by index{where}: "
                f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time, where reading the same "
                f"rows takes {ms(same_ns)}",
                cost_ns=gpu_time(view, mine, above_ns),
                cost_of="GPU time of these kernels above that of reading",
                place=view.hottest_line(mine, above_ns),
                rows=mine,
                weight=above_ns,
                remedy=REMEDY,
                confidence="medium",
                saving=shorter(mine, 1 - above_ns / np.maximum(duration[mine], 1)),
            )
        )
    alone = adds & (reading_ns[side] == 0)
    findings += sorted_adds(view, alone, view[SHARE] * view.gpu_ns)
    return findings or view.too_few_lines("that no line adds rows slowly") or ()


RULE = Rule(
    "slow_scatter",
    "Which lines add rows by index slowly?",
    (SLOWER, SHARE),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
