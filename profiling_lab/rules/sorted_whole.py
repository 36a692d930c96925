# SPDX-License-Identifier: Apache-2.0
"""Is more sorted than is needed, or in a slow way?

A sort of rows on the GPU goes over keys and indices several times. The largest or the smallest (`max`,
`argmin`), the first k (`topk`), a median or a quantile (`kthvalue`), and the place of one element (how many
are larger) need no order of the rest: they only read, some of them several times. What is done with the
order is in the text of the line, `x.sort(dim=1).values[:, middle]`, or in those of the same function that
read the name it got. Where all of these take a part of it, or compare it, the sort is found. What replaces it
takes a tenth of its time, for one value of each row, else a third: that is experience.

One tensor that is sorted several times, as for each of several quantiles, needs one sort (see
sorted_again.py). And `unique(dim=...)` compares whole rows, in a sort by merging: of whole numbers one key
for each row can be made, and sorted by radix in about a fifth of the time.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer, shorter
from profiling_lab.analysis.stats import grouped
from profiling_lab.records import replace
from profiling_lab.rules.costs import gpu_time, kernels_and_time
from profiling_lab.rules.finding import STACKS, Abstain, Finding, RuleResult, Threshold
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.sort_uses import LEFT, use_of_order
from profiling_lab.rules.sorted_again import sorted_again
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "sorts at one line take", 0.05, "of the GPU time, at least", "ours: as medium")
SORTS = r"radixsort|radix_sort|segmented_?sort|bitonic_?sort|merge_?sort|sort_postprocess|fill_(reverse_)?ind"
OF_ROWS = r"merge_?sort.*unique_dim_cuda_template(<|i)(long|int|short|(un)?signed char|bool|[lisahb]e)"
LEFT_OF_ROWS = 0.2
REMEDY = {
    "max": "max(), min(), argmax() or argmin() read everything once",
    "compare": "the place of a value is the number of those that are larger: (x > value).sum()",
    "topk": "topk() for the first ones, kthvalue() or median() for one of them: the rest stays as it is",
}
ONCE = "sort once: quantile() takes a tensor of all levels, and one order serves all that read it"
BY_KEY = (
    "make one number of each row, (x * height + y) * depth + z, and give that to unique(); columns come back "
    "by % and //"
)


def check(view: View) -> RuleResult:
    sorts, duration = view.kernels_named(SORTS), view.operations.duration_ns
    least_ns = max(view[SHARE] * view.gpu_ns, 1)
    if duration[sorts].sum() < least_ns:
        return ()
    findings, by_row = [], np.flatnonzero(view.kernels_named(OF_ROWS) & (view.operation_place >= 0))
    for number, mine in grouped(by_row, view.operation_place[by_row]):
        rows = np.flatnonzero((view.operation_place == number) & view.kernels)
        if duration[mine].sum() >= least_ns:
            what = "unique() compares whole rows, where one number for each could be sorted"
            findings.append(_finding(view, number, rows, what, BY_KEY, LEFT_OF_ROWS))
    if not view.trace.source_texts:
        return findings or Abstain("the trace does not have the text of the lines", STACKS)
    statements = Statements(view)
    lines = [
        n for n in statements.of if duration[(rows := statements.rows(n))[sorts[rows]]].sum() >= least_ns
    ]
    for number in lines:
        rows = statements.rows(number)
        if use := use_of_order(statements, number, statements.of[number]):
            what = "all of it is sorted where a part of the order is used"
            findings.append(_finding(view, number, rows[sorts[rows]], what, REMEDY[use], LEFT[use]))
    for again in sorted_again(view, statements, lines):
        if duration[again.rows].sum() >= least_ns:
            what = f"the same is sorted {again.times} times"
            found = _finding(view, again.line, again.rows, what, ONCE, again.left, gone=True)
            findings.append(found if again.left else replace(found, severity_at_most="medium"))
    return findings


def _finding(
    view: View, line: int, rows: I64, what: str, remedy: str, left: float, gone: bool = False
) -> Finding:
    """gone: with their launches."""
    duration = view.operations.duration_ns[rows]
    return view.finding(
        f"{what}: {kernels_and_time(view, rows)}",
        cost_ns=gpu_time(view, rows),
        cost_of="GPU time of the sorts",
        place=view.place(line),
        rows=rows,
        weight=duration,
        remedy=remedy,
        confidence="medium",
        wins_frac=1 - left,
        saving=fewer(rows, left) if gone else shorter(rows, left),
    )


RULE = Rule("sorted_whole", "Is more sorted than is needed?", (SHARE,), check, __doc__ or "", time=Time.BUSY)
