# SPDX-License-Identifier: Apache-2.0
"""Both sides of a comparison over the same rows: lines aligned first, then kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np

from profiling_lab.analysis.diff.align import Line, Signature, same_files, same_lines
from profiling_lab.analysis.diff.measure import IDLE, Capture, LineInPhase
from profiling_lab.records import dataclass, replace
from profiling_lab.trace.columns import I32, I64

By: TypeAlias = Literal["line", "function", "operator", "kernel"]

Leaf: TypeAlias = tuple[LineInPhase, str]
"""what is aligned: a line in one phase, and the base name of a kernel or the cause of idle time"""


@dataclass(frozen=True, slots=True)
class Side:
    """All steps of all recordings of one side, over the leaves of both."""

    capture_of_step: I32
    step_ns: I64
    whole_ns: I64
    """per step: its time on every device that worked"""
    leaf_ns: I64
    """(steps, leaves)"""
    twice_ns: I64

    def __len__(self) -> int:
        return len(self.step_ns)


@dataclass(frozen=True, slots=True)
class Aligned:
    """`leaves` are written as the side after knows them; `line_before` has the numbers of lines that moved.

    A line that was removed, and whose number is another line's now, has its number negated: it is neither.
    """

    leaves: tuple[Leaf, ...]
    before: Side
    after: Side
    line_before: dict[LineInPhase, int]
    """places without their operator"""
    source_before: dict[tuple[str, int], str]
    """by file, as in `leaves`, and line of that side the text of the line, where it is known"""
    source_after: dict[tuple[str, int], str]


def align(before: tuple[Capture, ...], after: tuple[Capture, ...]) -> Aligned:
    """Give what is the same on both sides one column."""
    names = _file_names((*before, *after))
    renamed = [
        [[_renamed(leaf, names[id(capture)]) for leaf in capture.places] for capture in side]
        for side in (before, after)
    ]
    lines = [_signatures(leaf for leaves in side for leaf in leaves) for side in renamed]
    line_after = {theirs: ours for ours, theirs in same_lines(lines[0], lines[1]).items()}
    taken = {(file, number) for file, _, number in lines[1]}
    # The side before takes the function and the line number of the side after.
    moved: dict[LineInPhase, int] = {}
    for leaves in renamed[0]:
        for i, (place, kernel) in enumerate(leaves):
            now = line_after.get((place.file, place.function, place.line))
            if now is not None:
                leaves[i] = (replace(place, function=now[1], line=now[2]), kernel)
            elif (place.file, place.line) in taken:
                leaves[i] = (replace(place, line=-place.line), kernel)
            if leaves[i][0].line != place.line:
                moved[replace(leaves[i][0], operator="")] = place.line
    column: dict[Leaf, int] = {}
    for side in renamed:
        for leaves in side:
            for leaf in leaves:
                column.setdefault(leaf, len(column))
    shown = _shown_files(after, names)
    return Aligned(
        leaves=tuple((replace(p, file=shown.get(p.file, p.file)), kernel) for p, kernel in column),
        before=_side(before, renamed[0], column),
        after=_side(after, renamed[1], column),
        line_before={replace(p, file=shown.get(p.file, p.file)): line for p, line in moved.items()},
        source_before=_source(before, names, shown),
        source_after=_source(after, names, shown),
    )


def _file_names(captures: tuple[Capture, ...]) -> dict[int, dict[str, str]]:
    """Per recording (by id) and file the name it goes by in the comparison: the first recording's."""
    known: set[str] = set()
    found: dict[int, dict[str, str]] = {}
    for capture in captures:
        files = {place.file for place, _ in capture.places} - {""}
        names = {file: file for file in files} | same_files(known, files)
        known |= set(names.values())
        found[id(capture)] = names
    return found


def _shown_files(after: tuple[Capture, ...], names: dict[int, dict[str, str]]) -> dict[str, str]:
    """Per name in the comparison the path on the side after: that is the file a person opens."""
    return {name: file for capture in after for file, name in names[id(capture)].items()}


def _source(
    captures: tuple[Capture, ...], names: dict[int, dict[str, str]], shown: dict[str, str]
) -> dict[tuple[str, int], str]:
    """The texts of one side; a line that differs between its recordings has none."""
    found: dict[tuple[str, int], str] = {}
    for capture in captures:
        for (file, line), text in capture.source.items():
            name = names[id(capture)].get(file, file)
            key = (shown.get(name, name), line)
            if found.setdefault(key, text) != text:
                found[key] = ""
    return found


def _renamed(leaf: Leaf, names: dict[str, str]) -> Leaf:
    return replace(leaf[0], file=names.get(leaf[0].file, leaf[0].file)), leaf[1]


def _signatures(leaves: Iterable[Leaf]) -> dict[Line, Signature]:
    launches: dict[Line, set[tuple[str, str]]] = defaultdict(set)
    for place, kernel in leaves:
        if place.file:
            signature = launches[place.file, place.function, place.line]
            # Why the GPU waits changes from run to run; what a line launches does not.
            signature |= {(place.phase, kernel)} if place.phase != IDLE else set()
    return {line: frozenset(found) for line, found in launches.items()}


def _side(captures: tuple[Capture, ...], leaves: list[list[Leaf]], column: dict[Leaf, int]) -> Side:
    blocks = []
    for capture, its_leaves in zip(captures, leaves, strict=True):
        block = np.zeros((len(column), len(capture)), dtype=np.int64)
        np.add.at(block, [column[leaf] for leaf in its_leaves], capture.part_ns.T)
        blocks.append(block.T)
    return Side(
        capture_of_step=np.repeat(np.arange(len(captures), dtype=np.int32), [len(c) for c in captures]),
        step_ns=np.concatenate([c.step_ns for c in captures]),
        whole_ns=np.concatenate([c.whole_ns for c in captures]),
        leaf_ns=np.concatenate(blocks),
        twice_ns=np.concatenate([c.twice_ns for c in captures]),
    )


def group(leaves: tuple[Leaf, ...], by: By) -> dict[LineInPhase, list[int]]:
    """The columns of every row. Work without a line is grouped by operator; without an operator, by kernel,
    whose name is the row's function. Idle time is one row.
    """
    rows: dict[LineInPhase, list[int]] = defaultdict(list)
    for i, (place, kernel) in enumerate(leaves):
        if place.phase == IDLE:
            place = LineInPhase("", "", 0, IDLE)
        elif place.file and by == "line":
            place = replace(place, operator="")
        elif place.file and by == "function":
            place = replace(place, line=0, operator="")
        elif place.operator and by != "kernel":
            place = LineInPhase("", "", 0, place.phase, place.operator)
        else:
            place = LineInPhase("", kernel, 0, place.phase)
        rows[place].append(i)
    return rows
