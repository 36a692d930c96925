# SPDX-License-Identifier: Apache-2.0
"""Chains of kernels that one fused kernel could replace, and the copies and casts that belong to them.

A copy within the GPU has source and destination in one layout, and a cast changes elements one by one. So
both are memory-bound like any elementwise kernel, and fuse with those of their function that come right
before or after them: out of place, `masked_fill` first copies all of its input. A copy that has an
elementwise kernel on one side only may be a buffer that is filled or read, which stays. Copies that
autograd makes because a view was changed in place have a remedy of their own (see copy_reasons.py).
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.copy_reasons import of_changed_views
from profiling_lab.rules.kernel_families import OF_MANY_TENSORS, REARRANGING, rearranging
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I64

ELEMENT_BY_ELEMENT, OF_INDICES = r"elementwise_kernel", r"index|scatter|gather"


def within_chains(view: View) -> Mask:
    """Copies within the GPU between elementwise kernels of their function, and casts next to one, with no
    other work in between.
    """
    moves, casts = rearranging(view)
    straight = (casts | view.named("memcpy DtoD")) & ~of_changed_views(view)
    elementwise = view.kernels_named(ELEMENT_BY_ELEMENT) & ~view.kernels_named(OF_INDICES) & ~moves
    order, begins = by_stream(view)
    inside, function = (elementwise | straight)[order], view.function_of_line[view.operation_place][order]
    begins |= ~inside | np.append(True, function[1:] != function[:-1])[: len(order)] | (function < 0)
    begins[1:] |= ~inside[:-1]
    run, position = np.cumsum(begins, dtype=np.int64), np.arange(len(order))
    first, last = ends_of_runs(run, elementwise[order])
    between = (first < position) & (position < last)
    found = np.zeros(len(order), dtype=bool)
    found[order] = straight[order] & (between | (casts[order] & (last >= 0)))
    return found


def fusible(view: View, memory: Mask) -> I64:
    """What fusion saves: of each chain on a stream all but its longest kernel. Copies do not end a chain."""
    operations = view.operations
    fuses = memory & ~view.kernels_named(OF_MANY_TENSORS)
    order, begins = by_stream(view)
    ends = ~(fuses | view.kernels_named(REARRANGING))[order]
    number = np.cumsum(begins | ends)  # what ends a chain has a number that it shares with the chain after it
    of_chain, rows = number[fuses[order]], order[fuses[order]]
    longest_last = np.lexsort((operations.duration_ns[rows], of_chain))
    is_last = np.append(np.diff(of_chain[longest_last]) != 0, True)[: len(rows)]
    return np.asarray(np.sort(rows[longest_last[~is_last]]), dtype=np.int64)


def ends_of_runs(run: I64, marked: Mask) -> tuple[I64, I64]:
    """Per place the first and the last marked place of its run, len(run) and -1 for none. run: from 1 on."""
    at = np.flatnonzero(marked)
    first, last = np.full(len(run) + 1, len(run)), np.full(len(run) + 1, -1)
    np.minimum.at(first, run[at], at)
    np.maximum.at(last, run[at], at)
    return first[run], last[run]


def by_stream(view: View) -> tuple[I64, Mask]:
    """Operations in the order of each stream, and where the next stream begins."""
    operations = view.operations
    order = np.lexsort((operations.start_ns, operations.stream, operations.device, operations.process))
    stream = np.stack([operations.process, operations.device, operations.stream])[:, order]
    return order, np.append(True, (np.diff(stream) != 0).any(axis=0))[: len(order)]
