# SPDX-License-Identifier: Apache-2.0
"""Passes of backward: each goes through the nodes of a graph once.

A pass ends where something else than backward is launched, and where a node is evaluated again: autograd
evaluates each node once in a pass. Each thread of the engine has passes of its own.
"""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass
from profiling_lab.rules.finding import STACKS, Abstain
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace import Frame
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, NO_SEQUENCE, numbered, unique


@dataclass(frozen=True, slots=True)
class Passes:
    """One entry per operation of backward whose launch is known, in the order of their launches by thread."""

    rows: I64
    """rows of the operations"""
    thread: I64
    start_ns: I64
    """of the launch"""
    evaluation: I64
    """number of the evaluation of a node: its launches follow each other"""
    node: I64
    """number of the node; -1 for those without, such as AccumulateGrad"""
    number: I64
    """of the pass"""

    def __len__(self) -> int:
        return len(self.rows)


_KNOWN: WeakKeyDictionary[View, Passes] = WeakKeyDictionary()
"""several rules look at the passes of a view"""


def backward_passes(view: View) -> Passes:
    if (known := _KNOWN.get(view)) is None:
        known = _KNOWN[view] = _passes(view)
    return known


def _passes(view: View) -> Passes:
    call = view.attribution.call
    rows = np.flatnonzero((view.attribution.phase == Phase.BACKWARD) & (call >= 0))
    calls = view.calls
    rows = rows[np.lexsort((calls.start_ns[call[rows]], calls.thread[call[rows]]))].astype(np.int64)
    made, node = call[rows], _nodes(view, rows)
    thread, start_ns = calls.thread[made].astype(np.int64), calls.start_ns[made]
    name, process = calls.node_name[made].astype(np.int64), calls.process[made].astype(np.int64)
    other_thread = _changes(thread)
    begins = other_thread | _changes(node) | _changes(name)
    evaluation = np.cumsum(begins) - 1
    cut = other_thread | _launches_between(view, process, start_ns)
    for place in _evaluated_again(np.flatnonzero(begins), node, cut):
        cut[place] = True
    return Passes(rows, thread, start_ns, evaluation, node, np.cumsum(cut) - 1)


def undecided(passes: Passes) -> Abstain | None:
    """Abstain where the trace does not tell what passes there were."""
    if not len(passes):
        return Abstain("the trace has no backward, or does not distinguish it from forward", STACKS)
    if not (passes.node >= 0).any():
        return Abstain("the trace does not tell the node of autograd of a launch", STACKS)
    return None


def makes_a_graph(view: View, passes: Passes) -> Mask:
    """Per pass, whether it recorded what it did, to be differentiated again (create_graph=True), as does
    forward that is recomputed: the autograd counter of its thread moved.
    """
    counter = view.calls.next_sequence[view.attribution.call[passes.rows]]
    number, known = passes.number, counter != NO_SEQUENCE
    count = int(number.max(initial=-1)) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(least, number[known], counter[known])
    np.maximum.at(most, number[known], counter[known])
    return np.asarray(most > least)


def calling_line(view: View, start_ns: I64) -> Frame | None:
    """The line that most often began the passes with launches at these times: `loss.backward()` first makes
    the gradient of the loss. None where nothing is launched for it.
    """
    found, calls = view.attribution, view.calls
    rows = np.flatnonzero((found.phase == Phase.BACKWARD) & (found.call >= 0) & (view.operation_place >= 0))
    rows = rows[view.trace.stacks.called_by_engine()[calls.stack[found.call[rows]]]]
    rows = rows[np.argsort(calls.start_ns[found.call[rows]], kind="stable")]
    before = np.searchsorted(calls.start_ns[found.call[rows]], start_ns, "right") - 1
    before = before[before >= 0]
    return view.hottest_line(rows[before], np.ones(len(before), dtype=np.int64)) if len(before) else None


def of_nodes(view: View, pattern: str) -> Mask:
    """Per operation, whether a node of autograd launched it whose name matches."""
    calls, call = view.calls, view.attribution.call
    hits = np.array([*(re.search(pattern, name) is not None for name in calls.node_names), False], dtype=bool)
    return np.asarray((call >= 0) & np.append(hits[calls.node_name], False)[call])


def _nodes(view: View, rows: I64) -> I64:
    """Per operation a number of its node. Each thread of forward numbers its nodes by itself."""
    made = view.attribution.call[rows]
    sequence, counter = view.calls.node_sequence[made], view.calls.node_counter[made].astype(np.int64)
    process = view.calls.process[made].astype(np.int64)
    number = numbered(process, counter, sequence)
    return np.where(sequence >= 0, number, -1).astype(np.int64)


def _changes(column: I64) -> Mask:
    return np.append(True, column[1:] != column[:-1])[: len(column)]


def _launches_between(view: View, process: I64, start_ns: I64) -> Mask:
    """Per launch, whether its process launched something outside of backward since the one before."""
    call = view.attribution.call
    others = unique(call[(view.attribution.phase == Phase.FORWARD) & (call >= 0)])
    between = np.zeros(len(start_ns), dtype=bool)
    for number, mine in grouped(np.arange(len(start_ns)), process):
        its = np.sort(view.calls.start_ns[others[view.calls.process[others] == number]])
        between[mine] = _changes(np.searchsorted(its, start_ns[mine]))
    return between


def _evaluated_again(begin: I64, node: I64, cut: Mask) -> list[int]:
    """Where evaluations begin whose node the pass has evaluated before."""
    order = begin[np.argsort(node[begin], kind="stable")]
    same = (node[order[1:]] == node[order[:-1]]) & (node[order[1:]] >= 0)
    before = dict(zip(order[1:][same].tolist(), order[:-1][same].tolist(), strict=True))
    found, first = list[int](), 0
    for place in sorted({*before, *np.flatnonzero(cut).tolist()}):
        if cut[place]:
            first = place
        elif before[place] >= first:
            first = place
            found.append(place)
    return found
