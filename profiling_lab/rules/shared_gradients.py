# SPDX-License-Identifier: Apache-2.0
"""Calls of a network for the same loss as one whose gradients are stale.

Where a network is called more than once for a loss, autograd adds what each call gives for a weight, and
stores the sum: only the call that it evaluates last is followed by additions to gradients. So if all its
nodes have such sums, too, and the pass evaluated the same nodes before, these are other calls of the same
weights. Where such a call computes no gradient of its input, and the last one does, nothing is trained
through that input: all between its first and its last node is for nothing.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass
from profiling_lab.rules.passes import Passes
from profiling_lab.rules.view import Mask
from profiling_lab.trace.columns import I32, I64


@dataclass(frozen=True, slots=True)
class Kinds:
    """What entries of Passes do."""

    key: I32
    """number of the forward line and of the name of the node"""
    parameters: Mask
    """their nodes have parameters"""
    adds: Mask
    inputs: Mask
    """known by name to be the gradient of an input"""
    product: Mask
    maker: I64
    """number of the evaluation that computed what it passes on or adds; else its own"""


def other_calls(passes: Passes, kinds: Kinds, added: I64) -> tuple[I64, I64]:
    """The evaluations that are other calls of those whose gradients are added at these entries; and the
    entries that are for nothing as a whole.
    """
    count = int(passes.evaluation.max()) + 1
    begin = np.searchsorted(passes.evaluation, np.arange(count))
    stored = np.bincount(kinds.maker[added], minlength=count)
    sums = np.bincount(kinds.maker[kinds.adds], minlength=count) - stored
    inputs = np.bincount(passes.evaluation, weights=kinds.inputs, minlength=count)
    products = np.bincount(passes.evaluation, weights=kinds.product, minlength=count)
    found, whole = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    every = np.flatnonzero(kinds.parameters[begin])
    every = every[np.isin(passes.number[begin[every]], passes.number[added])]
    for _, nodes in grouped(every, passes.number[begin[every]]):
        last = nodes[stored[nodes] > 0]
        before = nodes[(stored[nodes] == 0) & np.isin(kinds.key[begin[nodes]], kinds.key[begin[last]])]
        times = len(before) // max(len(last), 1)
        same = np.tile(kinds.key[begin[last]], times)
        if not times or (sums[last] < stored[last]).any() or before[-1] > last[0]:
            continue
        if not np.array_equal(kinds.key[begin[before]], same):
            continue
        found.append(before)
        for call in np.split(before, times):
            end = call[-1]
            alone = ((nodes >= call[0]) & (nodes <= end)).sum() == len(call)
            if alone and not inputs[end] and products[end] < products[last[-1]]:
                whole.append(np.flatnonzero((passes.evaluation >= call[0]) & (passes.evaluation <= end)))
    return np.concatenate(found), np.concatenate(whole)
