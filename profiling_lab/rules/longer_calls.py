# SPDX-License-Identifier: Apache-2.0
"""Calls of a network in a loop, each on one position more than the one before.

A kernel that normalises has blocks for each position. Launched at the same line or stack it has from call to
call more blocks by the same number, until the loop begins again. What reads what is kept of earlier positions
grows, too, but has no such kernel. What is launched from the first to the last kernel that grows is the call.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass
from profiling_lab.rules.kernel_families import REARRANGING
from profiling_lab.rules.small_grids import blocks_of
from profiling_lab.rules.view import F64, Mask, View
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, numbered, unique

NORMS, BY_POSITION = r"layer_?norm|rms_?norm|group_?norm|meanops", r"elementwise_kernel"
"""kernels with blocks for each position, and those whose blocks grow as the tensor does"""
REGULAR_FRAC = 0.75
"""of the calls have as many blocks more as the others: a loop begins again after four or more"""
ROUNDED = 1
"""block more or less"""


@dataclass(frozen=True, slots=True)
class LongerCalls:
    """One entry per call."""

    positions: F64
    """how many are computed"""
    longer: Mask
    """one more position than in the call before"""
    of_call: tuple[I64, ...]
    """what is launched in it"""
    stack: int
    """the innermost frame around all that grows"""


@dataclass(frozen=True, slots=True)
class _Series:
    """Launches of a kernel at a stack. One entry per run of launches with the same number of blocks."""

    stack: int
    took_ns: int
    norm: bool
    blocks: F64
    more: float
    regular: Mask
    begin_ns: I64
    end_ns: I64


def longer_calls(view: View, times: int) -> LongerCalls | None:
    """The loop with most of the time of its norms; None unless it calls as often as `times`."""
    series = [each for each in _series(view) if each.regular.sum() >= times - 1]
    norms = [each for each in series if each.norm]
    if not norms:
        return None
    first = max(norms, key=lambda each: each.took_ns)
    mine = [each for each in series if len(each.blocks) == len(first.blocks)]
    begin_ns = np.min([each.begin_ns for each in mine], axis=0)
    end_ns = np.max([each.end_ns for each in mine], axis=0)
    found, calls = view.attribution, view.calls
    rows = np.flatnonzero((found.call >= 0) & (found.phase == Phase.FORWARD))
    launched_ns = calls.start_ns[found.call[rows]]
    number = np.searchsorted(begin_ns, launched_ns, "right") - 1
    inside = (number >= 0) & (launched_ns <= end_ns[number])
    of_call = dict(grouped(rows[inside], number[inside]))
    return LongerCalls(
        first.blocks / first.more,
        np.append(False, first.regular),
        tuple(of_call[n] for n in range(len(begin_ns))),
        _around(view, [each.stack for each in mine]),
    )


def _series(view: View) -> Iterator[_Series]:
    found, blocks = view.attribution, blocks_of(view)
    norms = view.kernels_named(NORMS)
    chosen = norms | (view.kernels_named(BY_POSITION) & ~view.kernels_named(REARRANGING))
    trained = unique(found.stack[found.phase == Phase.BACKWARD])
    chosen &= (found.call >= 0) & np.isfinite(blocks) & ~np.isin(found.stack, trained)
    rows = np.flatnonzero(chosen)
    launched_ns = view.calls.start_ns[found.call]
    rows = rows[np.argsort(launched_ns[rows], kind="stable")]
    name, stack = view.operations.name[rows], found.stack[rows]
    # At one line of yours a library may launch the first call of a loop at another line than the others.
    for _, its in (
        *grouped(rows, numbered(view.own_row[stack], name)),
        *grouped(rows, numbered(stack, name)),
    ):
        begins = np.append(True, np.diff(blocks[its]) != 0)
        first = np.flatnonzero(begins)
        last, of_run = np.append(first[1:], len(its)) - 1, blocks[its[first]]
        length, more = last - first + 1, np.diff(of_run)
        if not (more > 0).any():
            continue
        usual = float(np.median(more[more > 0]))
        regular = (more > 0) & (np.abs(more - usual) <= ROUNDED)
        if regular.mean() >= REGULAR_FRAC and (length == np.median(length)).mean() >= REGULAR_FRAC:
            yield _Series(
                int(found.stack[its[0]]),
                int(view.operations.duration_ns[its].sum()),
                bool(norms[its[0]]),
                of_run,
                usual,
                regular,
                launched_ns[its[first]],
                launched_ns[its[last]],
            )


def _around(view: View, stacks: list[int]) -> int:
    """The innermost stack that all of these are called from."""
    parent, common = view.trace.stacks.parent, list[int]()
    for stack in stacks:
        above = [stack]
        while above[-1] > 0:
            above.append(int(parent[above[-1]]))
        common = [row for row in common if row in above] if common else above
    return common[0]
