# SPDX-License-Identifier: Apache-2.0
"""torch.profiler's flow arrows from forward operators to their backward, to verify the autograd link.

Autograd numbers its nodes per thread, and a file does not say which thread `Fwd thread id` is. With one
forward thread this is not needed; with several the arrows identify the thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, full, unique
from profiling_lab.trace.kineto.events import ChromeEvents

_ENGINE = ("autograd::engine::evaluate_function", "torch::autograd::AccumulateGrad")

Rows = npt.NDArray[np.intp]

_COUNTER_BITS = 40  # a thread that creates a node every 10 ns reaches this in three hours
_MOST_COUNTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class FlowAgreement:
    """The number of arrows, and their agreement with the links by sequence number."""

    arrows: int
    """from an operator with a sequence number to another"""
    agree: int
    """begin at the operator that the sequence numbers link too"""
    loose: int
    """without such operators at both ends"""


@dataclass(frozen=True, slots=True)
class _Arrows:
    """Rows of operators."""

    forward: Rows
    backward: Rows
    loose: int


def flow_agreement(events: ChromeEvents) -> FlowAgreement:
    """Compare each arrow with the linking rule: of the operators outside of backward with the same number,
    the last one that started before it.
    """
    arrows = _arrows(events)
    agree = arrows.forward == _forward_of(events, counters_told_apart(events), arrows.backward)
    return FlowAgreement(len(arrows.forward), int(agree.sum()), arrows.loose)


def evaluates_a_node(events: ChromeEvents) -> npt.NDArray[np.bool_]:
    """Per operator, whether it is the autograd engine's evaluation of a node."""
    name = events["operators"]["name"]
    engine = [i for i in unique(name).tolist() if events.texts[i].startswith(_ENGINE)]
    return np.isin(name, engine)


def counters_told_apart(events: ChromeEvents) -> I64:
    """The sequence number per operator; with several counting threads, the thread is above bit 40."""
    operators = events["operators"]
    sequence, forward_thread = operators["sequence"], operators["forward_thread"]
    in_backward = (forward_thread > 0) & (sequence >= 0)
    counters = unique(forward_thread[in_backward])
    if not 1 < len(counters) < _MOST_COUNTERS:
        return sequence
    arrows = _arrows(events)
    threads = [_most_frequent(operators["thread"][arrows.forward[forward_thread[arrows.backward] == counter]])
               for counter in counters.tolist()]  # fmt: skip
    countable = (sequence >= 0) & (sequence < 1 << _COUNTER_BITS)
    out = sequence.copy()
    for i, (counter, thread) in enumerate(zip(counters.tolist(), threads, strict=True), 1):
        if thread >= 0 and threads.count(thread) == 1:
            makes = ~in_backward & (operators["thread"] == thread)
            evaluates = in_backward & (forward_thread == counter)
            out[countable & (makes | evaluates)] += i << _COUNTER_BITS
    return out


def _most_frequent(numbers: I32) -> int:
    """The most frequent number, -1 if there are none."""
    return int(np.bincount(numbers).argmax()) if len(numbers) else -1


def _arrows(events: ChromeEvents) -> _Arrows:
    flows, operators = events.flows, events["operators"]
    begins, ends = flows["is_end"] == 0, flows["is_end"] == 1
    begin, end = _matched(flows["id"][begins], flows["id"][ends])
    numbered = np.flatnonzero(operators["sequence"] >= 0)
    start_ns, thread = operators["start_ns"][numbered], operators["thread"][numbered]
    # Of operators with the same start, the innermost one ends first.
    order = np.lexsort((-operators["end_ns"][numbered], start_ns, thread))
    keys = _pairs(thread[order], start_ns[order])

    def operator_at(which: npt.NDArray[np.bool_]) -> Rows:
        if not len(keys):
            return full(int(which.sum()), -1, np.intp)
        asked = _pairs(flows["thread"][which], flows["time_ns"][which])
        at = np.maximum(np.searchsorted(keys, asked, side="right") - 1, 0)
        return np.where(keys[at] == asked, numbered[order[at]], -1)

    forward, backward = operator_at(begins)[begin], operator_at(ends)[end]
    whole = (forward >= 0) & (backward >= 0)
    total = int(max(begins.sum(), ends.sum()))
    return _Arrows(forward[whole], backward[whole], total - int(whole.sum()))


def _pairs(first: npt.NDArray[np.integer], second: I64) -> npt.NDArray[np.void]:
    """Pairs as single comparable values."""
    out = np.empty(len(first), dtype=[("first", np.int64), ("second", np.int64)])
    out["first"], out["second"] = first, second
    return out


def _matched(begin_id: I64, end_id: I64) -> tuple[Rows, Rows]:
    """Rows of begins and ends with the same id; of several ends with one id, the first."""
    ids, first = np.unique(end_id, return_index=True)
    if not len(ids):
        return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
    at = np.minimum(np.searchsorted(ids, begin_id), len(ids) - 1)
    found = np.flatnonzero(ids[at] == begin_id)
    return found, first[at[found]]


def _forward_of(events: ChromeEvents, sequence: I64, backward: Rows) -> Rows:
    """Per backward operator the linked forward operator, -1 if there is none."""
    operators = events["operators"]
    makes = (sequence >= 0) & (operators["forward_thread"] <= 0) & ~evaluates_a_node(events)
    rows = np.flatnonzero(makes)
    start_ns = operators["start_ns"]
    order = rows[np.lexsort((start_ns[rows], sequence[rows]))]
    if not len(order):
        return full(len(backward), -1, np.intp)
    asked = _pairs(sequence[backward], start_ns[backward])
    at = np.searchsorted(_pairs(sequence[order], start_ns[order]), asked) - 1
    found = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (sequence[found] == sequence[backward]), found, -1)
