# SPDX-License-Identifier: Apache-2.0
"""The lines of calls that launch nothing, also in backward."""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I32, I64


def places_of(view: View, calls: I64) -> I32:
    """Per call given the number of its line, -1 without one. In backward, where no Python runs, only what
    launches something has a line. What else its autograd node calls, such as cudaMalloc for the result of the
    kernel that follows, is of the same forward line.
    """
    made, place = view.calls, view.call_place[calls]
    lost = np.flatnonzero((place < 0) & (made.node_sequence[calls] >= 0))
    known = np.flatnonzero((view.call_place >= 0) & (made.node_sequence >= 0))
    rows = np.concatenate([known, calls[lost]])
    if not len(lost):
        return place
    # Each counter of a process numbers the nodes of its own forward thread.
    owner = made.process.astype(np.int64) * (int(made.node_counter.max()) + 2) + made.node_counter + 1
    number = made.node_sequence[rows] * (int(owner.max()) + 1) + owner[rows]
    node = np.unique(number, return_inverse=True)[1]
    of_node = np.full(len(rows), -1, dtype=np.int32)
    of_node[node[: len(known)]] = view.call_place[known]
    place[lost] = of_node[node[len(known) :]]
    return place
