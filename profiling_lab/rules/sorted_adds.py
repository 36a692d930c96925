# SPDX-License-Identifier: Apache-2.0
"""`index_put_(accumulate=True)`: torch sorts the indices, and then adds equal ones one after the other."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import Finding, ms, percent
from profiling_lab.rules.neighbours import right_before
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import unique

SORTED_ADDS = r"indexing_backward"
_SORTS = r"radixsort"
REMEDY = (
    "index_add_ or scatter_add_, which add at once and sort nothing (without "
    "torch.use_deterministic_algorithms(True), with which these sort, too)"
)


def sorted_adds(view: View, adds: Mask, least_ns: float) -> list[Finding]:
    """One finding per function whose sorts and additions take that long. adds: kernels to which nothing can
    be compared. Adding at once takes about as long as one pass of the sort, which moves all indices, too.
    """
    operations, place = view.operations, view.operation_place
    found = np.flatnonzero(adds & view.kernels_named(SORTED_ADDS))
    if not len(found):
        return []
    of, sorts = right_before(view, found, view.kernels_named(_SORTS))
    if not len(of):
        return []
    duration = operations.duration_ns
    longest_ns = np.zeros(len(operations), dtype=np.int64)  # of the passes before each addition
    np.maximum.at(longest_ns, of, duration[sorts])
    kernels = unique(of)
    findings = []
    for _, mine in grouped(kernels, view.function_of_line[place[kernels]]):
        rows = np.concatenate([mine, sorts[np.isin(of, mine)]])
        total_ns, pass_ns = int(duration[rows].sum()), int(longest_ns[mine].sum())
        if total_ns - pass_ns < least_ns:
            continue
        above_ns = duration[rows] * (1 - pass_ns / total_ns)
        findings.append(
            view.finding(
                f"{len(mine):,} times indices are sorted to add at them: {ms(total_ns)}, "
                f"{percent(total_ns / view.gpu_ns)} of the GPU time, where one pass of the sort over all of "
                f"them takes {ms(pass_ns)}",
                cost_ns=gpu_time(view, rows, above_ns.astype(np.int64)),
                cost_of="GPU time of sorting and adding, above that of one pass",
                place=view.hottest_line(rows, duration[rows]),
                rows=rows,
                weight=duration[rows],
                remedy=REMEDY,
                confidence="medium",
                saving=shorter(rows, pass_ns / total_ns),
            )
        )
    return findings
