# SPDX-License-Identifier: Apache-2.0
"""Are indices turned into rows of zeros with a single one, to pick something?

`one_hot(index, classes) @ table` multiplies a row of the table by one and all others by zero, and
`(one_hot(index, classes) * log_p).sum(-1)` adds up one number and many zeros. Reading at the index gives the
same: an embedding, `gather`, `cross_entropy`. The rule finds lines that make such rows, `one_hot(...)` or
`eye(...)[index]`, and what the same line, or those of its function that read the name it gave them, does with
them: products, or elementwise products that are summed. If all do one of these, the rows need not be made,
the forward of what uses them is next to nothing, and its backward writes zeros and adds at the index: of a
product a tenth, of an elementwise kernel, which reads and writes several tensors, about a third.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import fewer, shorter
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import MATRIX, MEMORY_BOUND
from profiling_lab.rules.one_hot_uses import makes_one_hot, uses_of
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, unique

SHARE = Threshold(
    "share", "such rows and what uses them take", 0.05, "of the GPU time, at least", "ours: as medium"
)
SCATTERS = r"scatter"
"""what writes the ones"""
FORWARD_LEFT, BACKWARD_LEFT = 0.05, {MATRIX: 0.1, MEMORY_BOUND: 0.33}
REMEDY = {
    MATRIX: "read rows at the index: F.embedding(index, table), table[index] or index_select",
    MEMORY_BOUND: "read at the index: gather(), or F.cross_entropy with indices for a loss",
}


def check(view: View) -> RuleResult:
    if not view.trace.source_texts:
        told = Abstain("the trace does not have the text of the lines", STACKS)
        return told if view.kernels_named(SCATTERS).any() else ()
    statements, duration, findings = Statements(view), view.operations.duration_ns, []
    for number, statement in statements.of.items():
        if not makes_one_hot(statement):
            continue
        uses = uses_of(statements, number, statement)
        if not uses or "" in uses.values():
            continue
        makes = statements.rows(number)
        makes = makes[~view.kernels_named(MATRIX)[makes]]
        used = [(_used(view, statements, line, family), family) for line, family in uses.items()]
        rows = unique(np.concatenate([makes, *(mine for mine, _ in used)]))
        total_ns = int(duration[rows].sum())
        if total_ns < max(view[SHARE] * view.gpu_ns, 1):
            continue
        saving = fewer(makes)
        for mine, family in used:
            backward = view.attribution.phase[mine] == Phase.BACKWARD
            saving |= shorter(mine, np.where(backward, BACKWARD_LEFT[family], FORWARD_LEFT))
        findings.append(
            view.finding(
                f"indices become rows with a single one, in order to pick: {len(makes):,} operations to make "
                f"them and {len(rows) - len(makes):,} to use them, {ms(total_ns)}, "
                f"{percent(total_ns / view.gpu_ns)} of the GPU time",
                cost_ns=gpu_time(view, rows),
                cost_of="GPU time of these rows and what uses them",
                place=view.hottest_line(rows, duration[rows]),
                rows=rows,
                weight=duration[rows],
                remedy=REMEDY[used[0][1]],
                confidence="medium",
                wins_frac=1 - FORWARD_LEFT,
                saving=saving,
            )
        )
    return findings


def _used(view: View, statements: Statements, line: int, family: str) -> I64:
    rows = statements.rows(line)
    return rows[view.kernels_named(family)[rows]]


RULE = Rule(
    "one_hot",
    "Are indices turned into rows with a single one, to pick something?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
