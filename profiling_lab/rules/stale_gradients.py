# SPDX-License-Identifier: Apache-2.0
"""Gradients that were there before the last step of an optimizer and were not cleared, and what they cost."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass
from profiling_lab.rules.kernel_families import MATRIX
from profiling_lab.rules.passes import Passes, of_nodes
from profiling_lab.rules.shared_gradients import Kinds, other_calls
from profiling_lab.rules.view import F64, Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I32, I64, numbered
from profiling_lab.trace.phases import LinePhase

ADDS = r"functor_?add|addfunctor"
ZEROES = r"fillfunctor"
OF_INPUTS, OF_WEIGHTS = r"dgrad", r"wgrad"
PASSED_ON = r"AccumulateGrad|ToCopyBackward|CopyBackwards|(^|:)TBackward"
"""nodes between the product that makes a weight's gradient and the addition"""
_NORMS = "NativeLayerNorm|NativeGroupNorm|NativeBatchNorm|CudnnBatchNorm"
HAS_PARAMETERS = rf"(^|:)(Addmm|Mm|Linear|Convolution|CudnnConvolution|Embedding|{_NORMS})Backward"
OF_INDICES = r"EmbeddingBackward"
"""of nodes whose inputs never have gradients"""
MANY = 1000
"""gradients that one launch of zero_grad may fill"""


@dataclass(frozen=True, slots=True)
class Stale:
    """Additions to gradients from before the last step; entries of Passes."""

    place: I64
    line: I32
    """number of the forward line of each"""
    updating: I32
    """number of the line of the step that follows, -1 unknown"""


def stale(view: View, passes: Passes) -> Stale:
    """Those in the first pass after a step, which one more step follows."""
    process = view.calls.process[view.attribution.call[passes.rows]]
    adds = (view.kernels_named(ADDS) & of_nodes(view, "AccumulateGrad"))[passes.rows]
    place, updating = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int32)]
    for number, mine in grouped(np.arange(len(passes)), process):
        steps_ns, line, most_zeroed = _steps(view, number)
        after = np.searchsorted(steps_ns, passes.start_ns[mine], "right")  # 0: before the first step
        added = adds[mine] & in_first_passes(passes, mine, after) & (after > 0) & (after < len(steps_ns))
        count = np.bincount(after[added], minlength=len(steps_ns) + 1)
        added &= (most_zeroed < count)[after]
        place.append(mine[added])
        updating.append(line[after[added]])
    at = np.concatenate(place)
    return Stale(at, view.operation_place[passes.rows[at]], np.concatenate(updating))


def for_nothing(view: View, passes: Passes, found: Stale, mine: I64) -> tuple[I64, F64, bool]:
    """What need not be computed for these additions: entries of Passes, and which fraction of each is left;
    and whether it is most of the time all that its pass does after the parameters that are used.

    A line whose parameters are stale in other passes alone has parameters that are used in these. So has a
    node of parameters whose gradients are not added to what was there before. But it is known only where the
    pass ends with parameters, and not with the gradient of an input, that no such input is used, too.
    """
    line, makers = view.operation_place[passes.rows], _makers(view, passes)
    made = _made(passes, makers, found.place)
    used = np.setdiff1d(found.line, found.line[mine])
    chosen = np.isin(passes.number, passes.number[found.place[mine]])
    last = np.full(int(passes.number.max()) + 1, -1)
    stored = of_nodes(view, HAS_PARAMETERS)[passes.rows] & ~np.isin(passes.evaluation, made)
    stored &= np.isin(passes.number, _end_with_parameters(view, passes, makers, made))
    at = np.flatnonzero(chosen & (np.isin(line, used) | stored))
    np.maximum.at(last, passes.number[at], at)
    last = last[passes.number]
    rest = chosen & (last >= 0) & (np.arange(len(passes)) > last)
    left = np.where(rest, 0.0, 1.0)
    weights = found.place[mine][~rest[found.place[mine]]]
    _of_weights(view, passes, makers, weights, left)
    at, took = np.flatnonzero(left < 1), view.operations.duration_ns[passes.rows]
    saved = took[at] * (1 - left[at])
    return at, left[at], bool(2 * saved[rest[at]].sum() > saved.sum())


def _of_weights(view: View, passes: Passes, makers: _Makers, added: I64, left: F64) -> None:
    """Notes what the nodes before these additions compute for weights alone."""
    others, whole = other_calls(passes, _kinds(view, passes, makers), added[makers.same_pass[added]])
    made = np.append(_made(passes, makers, added), others)
    left[whole] = 0.0
    made_these = np.isin(passes.evaluation[makers.entry], made)
    left[makers.passed_on & makers.same_pass & made_these] = 0.0
    left[added] = 0.0
    inputs, weights, product = (
        view.kernels_named(name)[passes.rows] for name in (OF_INPUTS, OF_WEIGHTS, MATRIX)
    )
    for _, its in grouped(*_entries_of(passes, made)):
        if weights[its].any():
            until = its[inputs[its]].max(initial=-1)
            left[its[weights[its] | ((its > until) & (until >= 0))]] = 0.0
        elif product[its].any():
            products = its[product[its]]
            left[products] = np.minimum(left[products], 0.5 if len(products) > 1 else 0.0)


def _kinds(view: View, passes: Passes, makers: _Makers) -> Kinds:
    name = view.calls.node_name[view.attribution.call[passes.rows]]
    return Kinds(
        numbered(view.operation_place[passes.rows], name),
        of_nodes(view, HAS_PARAMETERS)[passes.rows],
        view.kernels_named(ADDS)[passes.rows],
        view.kernels_named(OF_INPUTS)[passes.rows],
        view.kernels_named(MATRIX)[passes.rows],
        np.where(makers.same_pass, passes.evaluation[makers.entry], passes.evaluation),
    )


@dataclass(frozen=True, slots=True)
class _Makers:
    """Columns are entries of Passes."""

    passed_on: Mask
    """whether it passes a gradient on"""
    entry: I64
    """the last one before it that does not: its own if it does not"""
    same_pass: Mask


def _makers(view: View, passes: Passes) -> _Makers:
    passed_on = of_nodes(view, PASSED_ON)[passes.rows]
    entry = np.maximum.accumulate(np.where(passed_on, 0, np.arange(len(passes))))
    return _Makers(passed_on, entry, passes.number[entry] == passes.number)


def _made(passes: Passes, makers: _Makers, added: I64) -> I64:
    """The evaluations that made what these additions add."""
    return passes.evaluation[makers.entry[added[makers.same_pass[added]]]]


def _end_with_parameters(view: View, passes: Passes, makers: _Makers, made: I64) -> I64:
    """Passes whose last node computes stale gradients of parameters, and none of its input."""
    last = np.flatnonzero(np.append(passes.number[1:] != passes.number[:-1], True)[: len(passes)])
    last = makers.entry[last[makers.same_pass[last]]]
    last = last[np.isin(passes.evaluation[last], made)]
    inputs, product = (view.kernels_named(name)[passes.rows] for name in (OF_INPUTS, MATRIX))
    indices = of_nodes(view, OF_INDICES)[passes.rows]
    ends = [
        passes.number[its[0]]
        for _, its in grouped(*_entries_of(passes, passes.evaluation[last]))
        if indices[its[0]] or (not inputs[its].any() and product[its].sum() == 1)
    ]
    return np.array(ends, dtype=np.int64)


def _entries_of(passes: Passes, evaluations: I64) -> tuple[I64, I64]:
    at = np.flatnonzero(np.isin(passes.evaluation, evaluations))
    return at, passes.evaluation[at]


def _steps(view: View, process: int) -> tuple[I64, I32, I64]:
    """When the optimizers of a process launched something, and the line of each launch; and how many
    gradients one line fills with zeros before each, at most, and after the last: one launch of zero_grad
    fills many.
    """
    found, stacks = view.attribution, view.trace.stacks
    rows = np.flatnonzero((found.call >= 0) & (found.phase == Phase.FORWARD))
    rows = rows[view.calls.process[found.call[rows]] == process]
    rows = rows[np.argsort(view.calls.start_ns[found.call[rows]], kind="stable")]
    call, line = found.call[rows], view.operation_place[rows]
    clears = (stacks.nearest(lambda frame: frame.function.endswith("zero_grad")) > 0)[view.calls.stack[call]]
    steps = found.line_phase[rows] == LinePhase.OPTIMIZER
    fills = np.where(view.kernels_named(ZEROES)[rows] & ~steps, 1, 0) + np.where(clears, MANY, 0)
    start_ns = view.calls.start_ns[call]
    steps_ns = start_ns[steps]
    return steps_ns, line[steps], _most_at_one_line(steps_ns, start_ns, line, fills)


def _most_at_one_line(steps_ns: I64, time_ns: I64, line: I32, fills: I64) -> I64:
    """How much one line fills between two steps, at most; first before the first step."""
    most = np.zeros(len(steps_ns) + 1, dtype=np.int64)
    after = np.searchsorted(steps_ns, time_ns, "right")
    number = numbered(after, line)
    np.maximum.at(most, after, np.bincount(number, weights=fills).astype(np.int64)[number])
    return most


def in_first_passes(passes: Passes, mine: I64, after: I64) -> Mask:
    """Per entry given, whether it is in the first pass of its thread after this number of steps."""
    number = passes.number[mine]
    group = numbered(passes.thread[mine], after)
    first = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, group, number)
    return np.asarray(number == first[group])
