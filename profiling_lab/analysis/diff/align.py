# SPDX-License-Identifier: Apache-2.0
"""Which file and line of one version of a program is which of the other: folders differ, and lines move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from pathlib import PurePath
from typing import TypeAlias

Line: TypeAlias = tuple[str, str, int]
"""file, function, line"""
Signature: TypeAlias = frozenset[tuple[str, str]]
"""what a line launches: (phase, base name of the kernel)"""


def same_files(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """Per file of `after` the one of `before` that it is: the same path, else the longest common end of it.

    A file whose name fits several on the other side equally well is not matched.
    """
    theirs, ours = set(before), set(after)
    found = {file: file for file in ours & theirs}
    left_before, left_after = theirs - ours, ours - theirs
    score = {
        (mine, other): common for mine in left_after for other in left_before if (common := _end(mine, other))
    }
    for (mine, other), common in score.items():
        rivals = [v for pair, v in score.items() if pair != (mine, other) and (mine in pair or other in pair)]
        if all(common > rival for rival in rivals):
            found[mine] = other
    return found


def _end(a: str, b: str) -> int:
    """How many parts two paths have in common, from the end."""
    count = 0
    for x, y in zip(reversed(PurePath(a).parts), reversed(PurePath(b).parts), strict=False):
        if x != y:
            break
        count += 1
    return count


def same_lines(before: Mapping[Line, Signature], after: Mapping[Line, Signature]) -> dict[Line, Line]:
    """Per line of `after` the one of `before` that it is. File names must be aligned already.

    Lines of a function keep their numbers unless the order of what they launch fits better shifted: an edit
    above moves them all. What has no partner is new, or was removed.
    """
    by_function: dict[tuple[str, str], tuple[list[Line], list[Line]]] = defaultdict(lambda: ([], []))
    for side, lines in enumerate((before, after)):
        for line in sorted(lines, key=lambda line: line[2]):
            # Not every recorder knows the class of a function.
            by_function[line[0], line[1].rpartition(".")[2]][side].append(line)
    found: dict[Line, Line] = {}
    for theirs, ours in by_function.values():
        numbered = {line[2]: line for line in theirs}
        in_place = {line: numbered[line[2]] for line in ours if line[2] in numbered}
        moved = _moved(theirs, ours, before, after)
        found |= moved if _agree(moved, before, after) > _agree(in_place, before, after) else in_place
    return found


def _agree(
    pairs: Mapping[Line, Line], before: Mapping[Line, Signature], after: Mapping[Line, Signature]
) -> int:
    """How many pairs launch the same."""
    return sum(before[theirs] == after[ours] for ours, theirs in pairs.items())


def _moved(
    theirs: list[Line], ours: list[Line], before: Mapping[Line, Signature], after: Mapping[Line, Signature]
) -> dict[Line, Line]:
    """Pair lines in order: those that launch the same, and between them as many as face as many."""
    matcher = SequenceMatcher(None, [before[line] for line in theirs], [after[line] for line in ours], False)
    pairs: dict[Line, Line] = {}
    for _, from_before, to_before, from_after, to_after in matcher.get_opcodes():
        if to_before - from_before == to_after - from_after:
            pairs |= zip(ours[from_after:to_after], theirs[from_before:to_before], strict=True)
    return pairs
