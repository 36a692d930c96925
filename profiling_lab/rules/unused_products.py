# SPDX-License-Identifier: Apache-2.0
"""Are matrices multiplied for more than is needed: for a diagonal, by a diagonal, or in a large order?

`torch.diag(a @ b.T)` compares each row of `a` with all of `b`, and throws away all but one.
`torch.diag(d) @ a` multiplies by zeros. `(a * b).sum(-1)` and `d[:, None] * a` do the same in one pass over
their elements, a small part of the time of the product. What is done with a product, and what goes into
it, is in the text of the line. A product that got a name may be used elsewhere, too, so it is not looked at.
Products of three are looked at in product_order.py.
"""

from __future__ import annotations

import ast

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.records import replace
from profiling_lab.rules.costs import gpu_time, kernels_and_time
from profiling_lab.rules.expressions import called_name, calls_named, operands, products, unwrapped
from profiling_lab.rules.finding import STACKS, Abstain, RuleResult, Threshold
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.product_order import LEFT as LEFT_OF_ORDER
from profiling_lab.rules.product_order import OF_PAIRS, in_a_large_order
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.statements import Statements
from profiling_lab.rules.view import View

SHARE = Threshold("share", "such products take", 0.05, "of the GPU time, at least", "ours: as medium")
LEFT = 0.05
"""of the time of a product, what one pass over the elements takes"""
OF_DIAGONAL = ("diag", "diagonal", "trace")
DIAGONAL = frozenset({"diag", "diag_embed", "diagflat", "eye"})
ONLY_DIAGONAL = "(a * b).sum(-1) gives the diagonal of a @ b.T: one product for each row, not for each pair"
OF_ONE = "multiply the rows, d[:, None] * a, or the columns, a * d: a diagonal matrix is mostly zeros"
WHAT = {ONLY_DIAGONAL: "of which only the diagonal is used", OF_ONE: "of which one is a diagonal"}


def check(view: View) -> RuleResult:
    multiplies, duration, findings = view.kernels_named(MATRIX), view.operations.duration_ns, []
    least_ns = max(view[SHARE] * view.gpu_ns, 1)
    if duration[multiplies].sum() < least_ns:
        return ()
    if not view.trace.source_texts:
        return Abstain("the trace does not have the text of the lines", STACKS)
    statements = Statements(view)
    for number, statement in statements.of.items():
        of_line = statements.rows(number)
        rows = of_line[multiplies[of_line]]
        total_ns = int(duration[rows].sum())
        if total_ns < least_ns:
            continue
        order = in_a_large_order(view, statement, of_line, multiplies)
        if not (remedy := _remedy(statement) or order):
            continue
        what, left = WHAT.get(remedy, "three in a large order"), LEFT if remedy in WHAT else LEFT_OF_ORDER
        found = view.finding(
            f"matrices are multiplied, {what}: {kernels_and_time(view, rows)}",
            cost_ns=gpu_time(view, rows),
            cost_of="GPU time of these products",
            place=view.place(number),
            rows=rows,
            weight=duration[rows],
            remedy=remedy,
            wins_frac=1 - left,
            saving=shorter(rows, left),
        )
        findings.append(replace(found, severity_at_most="medium") if remedy == OF_PAIRS else found)
    return findings


def _remedy(statement: ast.stmt) -> str:
    """'' unless one is needed."""
    if any(_is_product(part) for call in calls_named(statement, *OF_DIAGONAL) for part in operands(call)):
        return ONLY_DIAGONAL
    if any(_is_diagonal(part) for product in products(statement) for part in operands(product)):
        return OF_ONE
    return ""


def _is_product(node: ast.expr) -> bool:
    node = unwrapped(node)
    return any(each is node for each in products(node))


def _is_diagonal(node: ast.expr) -> bool:
    node = unwrapped(node)
    return isinstance(node, ast.Call) and called_name(node) in DIAGONAL


RULE = Rule(
    "unused_products",
    "Are matrices multiplied for more than is needed?",
    (SHARE,),
    check,
    __doc__ or "",
    time=Time.BUSY,
)
