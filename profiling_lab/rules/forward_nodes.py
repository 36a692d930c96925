# SPDX-License-Identifier: Apache-2.0
"""Which operations of forward belong to a node of autograd, and to which of these nodes backward comes.

A node takes its number from the counter of its thread just before its operation is launched. So the first
launch that sees a new number belongs to the node before it, and so do those after it with the same stack.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, NO_SEQUENCE, numbered, unique


@dataclass(frozen=True, slots=True)
class Forward:
    """Operations of forward that a backward of their process follows, by thread and time."""

    rows: I64
    own: I64
    """row of the innermost frame of yours"""
    group: I64
    """number of the thread and of the backward that follows"""
    made: Mask
    """whether it belongs to a node"""
    evaluated: Mask
    """whether backward launches something for its node"""


def forward_nodes(view: View) -> Forward:
    calls, found = view.calls, view.attribution
    known = view.has_call & (calls.next_sequence[found.call] != NO_SEQUENCE)
    backward = found.call[known & (found.phase == Phase.BACKWARD)].astype(np.int64)
    rows = np.flatnonzero(known & (found.phase == Phase.FORWARD)).astype(np.int64)
    rows = rows[np.lexsort((calls.start_ns[found.call[rows]], calls.thread[found.call[rows]]))]
    call = found.call[rows].astype(np.int64)
    thread, sequence = calls.thread[call].astype(np.int64), calls.next_sequence[call]
    counted = numbered(thread, sequence)
    new = np.append(True, counted[1:] != counted[:-1])[: len(rows)]
    first = np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))
    node = numbered(
        np.concatenate([calls.counter[call], calls.node_counter[backward]]).astype(np.int64),
        np.concatenate([sequence - 1, calls.node_sequence[backward]]),
    )
    follows = _backward_after(view, call, backward)
    kept = follows >= 0
    return Forward(
        rows[kept],
        view.own_row[found.stack[rows]].astype(np.int64)[kept],
        numbered(follows, thread)[kept].astype(np.int64),
        (calls.stack[call] == calls.stack[call[first]])[kept],
        np.isin(node[: len(call)], node[len(call) :])[kept],
    )


def _backward_after(view: View, call: I64, backward: I64) -> I64:
    """Per call the number of the backward of its process that follows, -1 none."""
    calls, follows = view.calls, np.full(len(call), -1, dtype=np.int64)
    for process in unique(calls.process[backward]).tolist():
        begins_ns = np.sort(calls.start_ns[backward[calls.process[backward] == process]])
        mine = calls.process[call] == process
        after = np.searchsorted(begins_ns, calls.start_ns[call[mine]])
        follows[mine] = np.where(after < len(begins_ns), after, -1)
    return follows
