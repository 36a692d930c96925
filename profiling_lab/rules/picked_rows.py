# SPDX-License-Identifier: Apache-2.0
"""Lines that compute something element by element for all rows, and then pick some of these, such as
`F.interpolate(masks, scale_factor=4).sigmoid()[keep]`.

What a line launches tells it, also within the functions that it calls: kernels that compute element by
element or enlarge, and then those that read at an index, nothing else and nothing behind. To pick is the last
thing that the statement does, and nothing in it changes an object, so nothing else can use what was made.
Both kinds are bound by memory, so their times tell which part was picked: that of the index against the
longest of the others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from profiling_lab.rules.call_sites import in_a_row
from profiling_lab.rules.expressions import called_name, unwrapped
from profiling_lab.rules.own_frames import frames_around
from profiling_lab.rules.pure_lines import changes_of, statement_of, statements_within
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I64, unique

_INDEX = r"index_kernel_impl|index_?select|vectorized_gather|gather_internal_kernel<false"
_BY_ELEMENT = r"elementwise|upsample|copy_kernel"
_BY_INDEX = frozenset({"index_select", "gather", "take_along_dim"})
_PICKED_FRAC = 0.5
"""at most, of what is computed"""


def picked_rows(view: View, least_ns: float) -> Iterator[tuple[Frame, I64, float]]:
    """The line, what computes for all, and the part of it that is left."""
    index, duration = view.kernels_named(_INDEX), view.operations.duration_ns
    computes = view.kernels_named(_BY_ELEMENT) & ~index
    for place, statement, rows in _statements(view, least_ns):
        rows = rows[view.attribution.phase[rows] == Phase.FORWARD]
        if not _picks(view, statement, rows[index[rows]]):
            continue
        runs, made, left = [*in_a_row(view, rows)], [rows[:0]], list[float]()
        for each in runs:
            picks = np.flatnonzero(index[each])
            if not len(picks) or not (computes | index)[each].all() or picks[0] == 0 or not index[each[-1]]:
                break
            before = each[: picks[0]]
            if len(picks) < len(each) - picks[0]:
                break
            made.append(before)
            left.append(float(duration[each[picks]].sum() / max(int(duration[before].max()), 1)))
        else:
            all_made = np.concatenate(made)
            changes = any(changes_of(each) for each in statements_within(view, place, rows))
            if (
                not changes
                and left
                and np.median(left) <= _PICKED_FRAC
                and duration[all_made].sum() >= least_ns
            ):
                yield place, all_made, float(np.median(left))


def _picks(view: View, statement: ast.stmt, picking: I64) -> bool:
    """Whether to pick is the last thing that a statement does, by an index or in a function of yours."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
    value = unwrapped(value) if value else None
    if isinstance(value, ast.Call) and called_name(value) not in _BY_INDEX:
        inner = view.trace.stacks.frame[view.own_row[view.attribution.stack[picking]]]
        functions = {view.trace.stacks.frames[frame].function for frame in unique(inner).tolist()}
        return {function.split(".")[-1] for function in functions} == {called_name(value)}
    return isinstance(value, (ast.Subscript, ast.Call))


def _statements(view: View, least_ns: float) -> Iterator[tuple[Frame, ast.stmt, I64]]:
    """Lines that give a value or return one, with all that is launched in them, the inner ones first."""
    stacks, found, texts = view.trace.stacks, view.attribution.stack, view.trace.source_texts
    took_ns = np.bincount(found, weights=view.operations.duration_ns, minlength=len(stacks))
    within: dict[tuple[str, int], set[int]] = {}
    frames: dict[tuple[str, int], Frame] = {}
    for stack in unique(found).tolist():
        for frame in frames_around(view, int(view.own_row[stack])):
            frames[frame.file, frame.line] = frame
            within.setdefault((frame.file, frame.line), set()).add(stack)
    for key, mine in within.items():
        statement = statement_of(texts.get(key, ""))
        if took_ns[list(mine)].sum() >= least_ns and isinstance(statement, (ast.Assign, ast.Return)):
            yield frames[key], statement, np.flatnonzero(np.isin(found, list(mine)))
