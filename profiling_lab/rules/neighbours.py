# SPDX-License-Identifier: Apache-2.0
"""Which operations come right before or right behind others, on the same stream and at the same line."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.rules.chains import by_stream
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I64, OperationKind


def right_before(view: View, rows: npt.NDArray[np.integer], what: Mask) -> tuple[I64, I64]:
    """Operations of `what` behind which one of `rows` comes, with at most others of `what` and memsets in
    between: (the one of `rows`, that of `what`).
    """
    return _next_to(view, rows, what, before=True)


def right_behind(view: View, rows: npt.NDArray[np.integer], what: Mask) -> tuple[I64, I64]:
    """The same of operations that come behind one of `rows`."""
    return _next_to(view, rows, what, before=False)


def _next_to(view: View, rows: npt.NDArray[np.integer], what: Mask, before: bool) -> tuple[I64, I64]:
    operations, (order, begins) = view.operations, by_stream(view)
    stream = np.cumsum(begins)
    others = np.flatnonzero(~(what | (operations.kind == OperationKind.SET))[order])
    mine = np.flatnonzero(what[order])
    if not len(others):
        return order[:0], order[:0]
    at = np.searchsorted(others, mine) - (0 if before else 1)
    there = (at >= 0) & (at < len(others))
    near = others[np.where(there, at, 0)]
    of, found = order[near], order[mine]
    fits = there & (stream[near] == stream[mine]) & np.isin(of, rows)
    fits &= view.operation_place[of] == view.operation_place[found]
    return of[fits], found[fits]
