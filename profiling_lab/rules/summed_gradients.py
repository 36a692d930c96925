# SPDX-License-Identifier: Apache-2.0
"""Is the gradient of one weight summed up use by use, because a line uses the weight again and again?

A layer that is called in a loop reads its weight in each call, and each call has a gradient of its own, as
large as the weight, which autograd adds to those before. One call for all inputs reads the weight once, and
its product sums inside.

The engine adds what comes to a node for which something has come before. The node of a transposed weight
(`TBackward0`, of `nn.Linear`) launches nothing itself, so what is launched for it are such sums. The cost is
their time. A sum reads two tensors of the weight's size and writes one; so a third of its time is what each
product of the line needs at least to read the weight or to write its gradient. One call saves this, too, and
the launches. Not so where the line needs what it made before, as a recurrent cell does: there the sums alone
count. The text of the lines tells that, but not all of it, so the severity is at most medium.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving, fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import gpu_time
from profiling_lab.rules.finding import RuleResult, Threshold, ms, percent
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.passes import backward_passes, of_nodes, undecided
from profiling_lab.rules.recurrences import comes_back
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, unique

SHARE = Threshold("share", "the sums take", 0.05, "of the GPU time, at least", "ours")
MANY = Threshold("many", "sums at one line in one backward", 8, "on average, at least", "ours: a loop")
OF_VIEWS = r"^TBackward0$"
_OF_SUM = 1 / 3
ONE_CALL = "call the layer once: collect its inputs, and give it all of them as one batch (torch.stack)"
OF_CELLS = (
    "use nn.GRU, nn.LSTM or nn.RNN, which make one product of it, or apply to all inputs at once what does "
    "not need the state"
)


def check(view: View) -> RuleResult:
    passes = backward_passes(view)
    if abstain := undecided(passes):
        return abstain
    is_sum = (of_nodes(view, OF_VIEWS) & view.kernels)[passes.rows]
    line, duration = view.operation_place[passes.rows], view.operations.duration_ns
    findings = []
    for number, at in grouped(np.flatnonzero(is_sum & (line >= 0)), line[is_sum & (line >= 0)]):
        sums, times = passes.rows[at], len(unique(passes.number[at]))
        sums_ns = int(duration[sums].sum())
        if sums_ns < view[SHARE] * view.gpu_ns or len(sums) < view[MANY] * times:
            continue
        recurrent, saving = comes_back(view, sums), fewer(sums)
        findings.append(
            view.finding(
                f"gradients of a weight are summed up {len(sums) / times:,.0f} times in each backward, "
                f"because this line uses it again and again{', with what it made before' * recurrent}: "
                f"{ms(sums_ns)}, {percent(sums_ns / view.gpu_ns)} of the GPU time",
                cost_ns=gpu_time(view, sums),
                cost_of="GPU time of the sums",
                place=view.place(number),
                rows=sums,
                weight=duration[sums],
                remedy=OF_CELLS if recurrent else ONE_CALL,
                confidence="medium",
                saving=saving if recurrent else saving | _once(view, number, sums, times),
            )
        )
    return findings or view.too_few_lines("that no weight is used again and again") or ()


def _once(view: View, line: int, sums: I64, times: int) -> Saving:
    """The line's operations, launched once in each of `times` passes where they come with each use. Its
    products read the weight, or write its gradient, once.
    """
    rows, uses = np.flatnonzero((view.operation_place == line) & view.has_call), len(sums) / times + 1
    duration, name = view.operations.duration_ns, view.operations.name[rows]
    part = _OF_SUM * duration[sums].mean() / np.maximum(duration[rows], 1)
    left = np.where(view.kernels_named(MATRIX)[rows], 1 - np.minimum(part, 1 - 1 / uses), 1.0)
    return Saving(rows, left, 1 / np.clip(np.bincount(name)[name] / times, 1, uses))


RULE = Rule(
    "summed_gradients",
    "Is the gradient of one weight summed up use by use?",
    (SHARE, MANY),
    check,
    __doc__ or "",
    time=Time.BUSY,
    severity_at_most="medium",
)
