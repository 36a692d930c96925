# SPDX-License-Identifier: Apache-2.0
"""Is all of a tensor sorted, where a few of its values are used?

A sort of rows on the GPU goes over keys and indices several times. The largest or the smallest (`max`,
`argmin`), the first k (`topk`), a median or a quantile (`kthvalue`), and the place of one element (how many
are larger) need no order of the rest: they only read, some of them several times. What is done with the
order is in the text of the line, `x.sort(dim=1).values[:, middle]`, or in those of the same function that
read the name it got. Where all of these take a part of it, or compare it, the sort is found. What replaces it
takes a tenth of its time, for one value of each row, else a third: that is experience.
"""

from __future__ import annotations

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.sort_uses import LEFT, use_of_order
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View

SHARE = Threshold("share", "sorts at one line take", 0.05, "of the GPU time, at least", "ours: as medium")
SORTS = r"radixsort|radix_sort|segmented_?sort|bitonic_?sort|merge_?sort|sort_postprocess|fill_(reverse_)?ind"
REMEDY = {
    "max": "max(), min(), argmax() or argmin() read everything once",
    "compare": "the place of a value is the number of those that are larger: (x > value).sum()",
    "topk": "topk() for the first ones, kthvalue() or median() for one of them: the rest stays as it is",
}


def check(view: View) -> RuleResult:
    sorts = view.kernels_named(SORTS)
    duration = view.operations.duration_ns
    least_ns = max(view[SHARE] * view.gpu_ns, 1)
    if duration[sorts].sum() < least_ns:
        return ()
    if not view.trace.source_texts:
        return Abstain("the trace does not have the text of the lines", STACKS)
    statements, findings = Statements(view), []
    for number, statement in statements.of.items():
        rows = statements.rows(number)
        rows = rows[sorts[rows]]
        total_ns = int(duration[rows].sum())
        if total_ns < least_ns or not (use := use_of_order(statements, number, statement)):
            continue
        findings.append(
            view.finding(
                f"all of it is sorted where a part of the order is used: {len(rows):,} kernels, "
                f"{ms(total_ns)}, {percent(total_ns / view.gpu_ns)} of the GPU time",
                cost_ns=gpu_time(view, rows),
                cost_of="GPU time of the sorts",
                place=view.place(number),
                rows=rows,
                weight=duration[rows],
                remedy=REMEDY[use],
                confidence="medium",
                wins_frac=1 - LEFT[use],
                saving=shorter(rows, LEFT[use]),
            )
        )
    return findings


RULE = Rule(
    "sorted_whole",
    "Is all of a tensor sorted, where a part of the order is used?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
