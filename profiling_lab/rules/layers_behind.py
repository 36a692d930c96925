# SPDX-License-Identifier: Apache-2.0
"""Products of one call of a network that backward does not come to, behind those that it does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.forward_nodes import Forward, forward_nodes
from profiling_lab.rules.kernel_families import CONVOLUTION, MATRIX
from profiling_lab.rules.own_frames import frames_around
from profiling_lab.rules.recurrences import comes_back
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I64, numbered, unique

FEWEST = 2
"""products: one may be of a layer whose output is only looked at"""


def layers_behind(view: View, often: float) -> I64:
    """The operations of such layers. `often`: before which part of the backwards it must be so."""
    found = forward_nodes(view)
    product = (view.kernels_named(MATRIX) | view.kernels_named(CONVOLUTION))[found.rows]
    parts = [found.rows[:0]]
    for own in unique(found.own[product & found.made & ~found.evaluated]).tolist():
        calls = _calls(found, product & found.made & (found.own == own))
        if own and (used := _used(view, found, calls, often)) and not _detaches(view, own):
            parts += _behind(found, calls, used, product)
            parts += _without_gradients(view, found, calls[0], used, product)
    return unique(np.concatenate(parts))


def _calls(found: Forward, chosen: Mask) -> list[I64]:
    """Entries with one row of yours, before one backward."""
    at = np.flatnonzero(chosen)
    return [each for _, each in grouped(at, numbered(found.own[at], found.group[at]))]


def _used(view: View, found: Forward, calls: list[I64], often: float) -> int:
    """How many of the products backward comes to, all others behind them; 0 if it is not so."""
    shapes = [tuple(found.evaluated[each].tolist()) for each in calls]
    shape = max(set(shapes), key=shapes.count)
    used, first = sum(shape), calls[shapes.index(shape)]
    if not all(shape[:used]) or used > len(shape) - FEWEST or shapes.count(shape) < often * len(calls):
        return 0
    name, begins = view.operations.name[found.rows[first]], min(used, len(first) - used)
    again = np.array_equal(name[:begins], name[used : used + begins])
    return 0 if again and not comes_back(view, found.rows[first], unknown=False) else used


def _detaches(view: View, own: int) -> bool:
    """Whether a line of yours around says so."""
    texts = view.trace.source_texts
    return any("detach" in texts.get((f.file, f.line), "") for f in frames_around(view, own))


def _behind(found: Forward, calls: list[I64], used: int, product: Mask) -> Iterator[I64]:
    """What is launched from the first product on that backward does not come to, until the last of its line;
    nothing of it may be used.
    """
    for each in calls:
        if len(each) > used:
            at = np.arange(each[used], _until(found, int(each[-1])))
            if not (product & found.evaluated & found.made)[at].any():
                yield found.rows[at]


def _until(found: Forward, last: int) -> int:
    """Behind the last launch that follows with the same row of yours, before the same backward."""
    other = np.flatnonzero((found.own[last:] != found.own[last]) | (found.group[last:] != found.group[last]))
    return last + int(other[0]) if len(other) else len(found.rows)


def _without_gradients(view: View, found: Forward, call: I64, used: int, product: Mask) -> Iterator[I64]:
    line, name = view.operation_place[found.rows], view.operations.name[found.rows]
    its = _calls(found, product & ~found.made & (line == line[call[0]]))
    for each in its:
        if np.array_equal(name[each], name[call]):
            at = np.arange(each[used], _until(found, int(each[-1])))
            yield found.rows[at]
