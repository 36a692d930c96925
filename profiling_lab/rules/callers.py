# SPDX-License-Identifier: Apache-2.0
"""Operations of functions that call each other: what one passes to the next has one cause, and so have the
launches of a loop, whatever it calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.view import View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I32, I64, combined, unique

_COMPREHENSION = re.compile(r"\.<locals>\.<(genexpr|listcomp|dictcomp|setcomp)>")


def connected(view: View, rows: I64) -> Iterator[I64]:
    """These operations in groups: those of one function, and of the functions among them that call it."""
    of_row = view.function_of_line[view.operation_place[rows]]
    parts = {int(function): rows[mine] for function, mine in grouped(np.arange(len(rows)), of_row)}
    root = {function: function for function in parts}
    for function, mine in parts.items():
        for caller in _functions_around(view, mine) & set(parts):
            one, other = root[function], root[caller]
            root |= {each: other for each, now in root.items() if now == one}
    for first in sorted(set(root.values())):
        yield np.sort(np.concatenate([parts[each] for each, now in root.items() if now == first]))


def _functions_around(view: View, rows: I64) -> set[int]:
    """The functions of your code in which these operations were launched, at any depth."""
    stacks, own_row, found = view.trace.stacks, view.own_row, set[int]()
    row = unique(own_row[view.attribution.stack[rows]])
    while len(row := row[row > 0]):
        found.update(view.function_of_line[view.place_of_stack(row)].tolist())
        row = unique(own_row[stacks.parent[row]])
    return found


def function_of(frame: Frame) -> tuple[str, str]:
    """File and name of a line's function. A comprehension has a frame of its own, but belongs to the function
    around it.
    """
    return frame.file, _COMPREHENSION.sub("", frame.function)


def callers(view: View) -> set[tuple[str, str]]:
    """File and name of your functions in which others of them launched something."""
    stacks, own_row, found = view.trace.stacks, view.own_row, set[tuple[str, str]]()
    row = unique(own_row[view.attribution.stack])
    while len(row := row[row > 0]):
        around = own_row[stacks.parent[row]]
        own = around > 0
        for inner, outer in combined(stacks.frame[row[own]], stacks.frame[around[own]])[1]:
            inside, function = (stacks.frames[number] for number in (inner, outer))
            if not (_COMPREHENSION.search(inside.function) and function_of(inside) == function_of(function)):
                found.add((function.file, function.function))
        row = unique(around)
    return found


def work_of_line(view: View) -> I32:
    """Per line number that of the work that it belongs to: lines of one function do one work, but not if the
    function leaves the work to others of yours. -1 last, for what has no line.
    """
    places, leaving = [view.place(line) for line in range(view.lines)], callers(view)
    leaves = [place is not None and (place.file, place.function) in leaving for place in places]
    of_line = view.function_of_line[:-1]
    alone = int(of_line.max(initial=-1)) + 1 + np.arange(len(of_line))
    return np.append(np.where(leaves, alone, of_line), -1).astype(np.int32)


def statement_of_line(view: View) -> I32:
    """Per line number that of its statement: where one goes over several lines, each has the text of all. -1
    last, for operations without a line.
    """
    texts, numbers = view.trace.source_texts, dict[tuple[str, str], int]()
    found = np.arange(view.lines + 1, dtype=np.int32)
    for line in range(view.lines):
        if (place := view.place(line)) and (text := texts.get((place.file, place.line))):
            found[line] = numbers.setdefault((place.file, text), line)
    found[-1] = -1
    return found


def waiting_loops(view: View, rows: I64, passes: float) -> dict[int, int]:
    """Functions that launched some of these operations, mostly called by one line, in a loop: that line
    launches such operations too, and its waits for the GPU divide the function's launches into at least
    `passes` parts. Numbers of functions, each with that of the line.
    """
    stacks, place, calls = view.trace.stacks, view.operation_place[rows], view.calls
    around = stacks.parent[view.own_row[view.attribution.stack[rows]]]
    calling = view.place_of_stack(around.astype(np.int32))
    wait_place, found, statement = view.wait_place(view.waits), {}, statement_of_line(view)
    for function, mine in grouped(np.arange(len(rows)), view.function_of_line[place]):
        lines, count = np.unique(calling[mine], return_counts=True)
        line, call = int(lines[count.argmax()]), view.attribution.call[rows[mine]]
        mostly, inside = 2 * count.max() >= len(mine), view.function_of_line[line] == function
        if not mostly or inside or statement[line] not in statement[place]:
            continue
        ends_ns = np.sort(calls.end_ns[view.waits[statement[wait_place] == statement[line]]])
        parts = unique(np.searchsorted(ends_ns, calls.start_ns[call[call >= 0]]))
        if line >= 0 and len(parts) >= passes:
            found[int(function)] = line
    return found


def with_copies(view: View, rows: I64, short_ns: float) -> I64:
    """These kernels, and the short copies and memsets of their lines: a remedy launches as few of those."""
    place, inside = view.operation_place, view.named("memcpy DtoD", "memset")
    inside = inside & (view.operations.duration_ns < short_ns) & (place >= 0) & np.isin(place, place[rows])
    inside[rows] = True
    return np.flatnonzero(inside)
