# SPDX-License-Identifier: Apache-2.0
"""Is more computed than is picked afterwards?

The next word follows from the last position: `model(prompt)[:, -1]`. The layer that gives scores for each
word of the vocabulary is often the largest of a model, and its result the largest tensor. It does the same at
each position, so it needs to be given the last one only: `self.head(x[:, -1:])`. The rule finds lines with
one product of matrices, and casts or copies next to it, whose result is indexed so: in the line, in those
that read the name it gave, or where the function is called that returns it. That there are many positions is
known from the norm before it, which has a block for each. At one position nearly nothing is left.

Likewise what is computed element by element for all rows, as masks that are enlarged, where the same line
then picks some of them by an index (see picked_rows.py).
"""

from __future__ import annotations

from profiling_lab.analysis.critical_path.savings import shorter
from profiling_lab.rules.costs import gpu_time, kernels_and_time
from profiling_lab.rules.finding import STACKS, Abstain, Finding, RuleResult, Threshold
from profiling_lab.rules.picked_positions import layers_of_the_last
from profiling_lab.rules.picked_rows import picked_rows
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I64

SHARE = Threshold("share", "such lines take", 0.05, "of the GPU time, at least", "ours: as medium")
MANY = Threshold(
    "many", "positions in a call", 1024, "at least", "ours: fewer may be sequences of one word each"
)
LEFT = 0.05
LAST = "all positions get a result here, of which the last is used"
OF_LAST = "take the last position before the layer: self.head(x[:, -1:]); in transformers logits_to_keep=1"
SOME = "all rows are computed here, and some of them are picked then"
OF_SOME = "pick first, then compute: what is done to each element needs the rows that are kept only"


def check(view: View) -> RuleResult:
    if not view.trace.source_texts:
        return Abstain("the trace does not have the text of the lines", STACKS)
    least_ns = max(view[SHARE] * view.gpu_ns, 1)
    findings = [
        _finding(view, place, rows, LAST, OF_LAST, LEFT)
        for place, rows in layers_of_the_last(view, view[MANY], least_ns)
    ]
    return findings + [
        _finding(view, place, rows, SOME, OF_SOME, left) for place, rows, left in picked_rows(view, least_ns)
    ]


def _finding(view: View, place: Frame, rows: I64, what: str, remedy: str, left: float) -> Finding:
    duration = view.operations.duration_ns[rows]
    return view.finding(
        f"{what}: {kernels_and_time(view, rows)}",
        cost_ns=gpu_time(view, rows),
        cost_of="GPU time of these kernels",
        place=place,
        rows=rows,
        weight=duration,
        remedy=remedy,
        confidence="medium",
        wins_frac=1 - left,
        saving=shorter(rows, left),
    )


RULE = Rule(
    "picked_late",
    "Is more computed than is picked afterwards?",
    (SHARE, MANY),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
