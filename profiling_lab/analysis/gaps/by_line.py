# SPDX-License-Identifier: Apache-2.0
"""Idle time in groups: the same cause between the same two lines of the program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.analysis.gaps.host_lines import HostLine
from profiling_lab.analysis.gaps.pieces import GapPieces
from profiling_lab.analysis.stats import grouped
from profiling_lab.trace.columns import I32, I64, Operations
from profiling_lab.trace.stacks import Frame

Rows: TypeAlias = npt.NDArray[np.intp]
CauseAtLine = tuple[Cause, Frame | None, bool]
"""the cause, its line, and whether the host was in that line, not only on its way to it"""


def groups_by_line(pieces: GapPieces, line_before: I32, line_after: I32) -> I64:
    """Per piece the number of its group; the lines are numbers too, -1 where none is known."""
    lines = int(max(line_before.max(initial=0), line_after.max(initial=0))) + 2
    key = (line_before.astype(np.int64) + 1) * lines + line_after + 1
    return np.asarray(key * len(Cause) + pieces.cause, dtype=np.int64)


def cause_at_line(
    pieces: GapPieces, rows: npt.NDArray[np.intp], seen: HostLine | None, line_after: Frame | None
) -> CauseAtLine:
    """Of one group. `seen`: where samples found the host; else it is the line that launched next."""
    cause = Cause(int(pieces.cause[rows[0]]))
    if cause not in (Cause.HOST_CODE, Cause.AFTER_WAIT) or seen is None:
        return cause, line_after, bool(pieces.exact[rows].all())
    if seen.rival is not None:
        return Cause.GIL_WAIT, seen.rival, True
    return seen.loads or Cause.HOST_CODE, seen.frame, True


def by_function(
    groups: Mapping[CauseAtLine, Sequence[Rows]], idle_ns: I64, callers: Collection[tuple[str, str]]
) -> Iterator[tuple[CauseAtLine, Rows, int]]:
    """The pieces of each group and its number of lines. Host code of one function is one group, at the line
    of most of its idle time: its lines do one work. Not those of `callers`, file and name of functions that
    leave the work to others: a training loop does many works.
    """
    parts = {at: np.concatenate(rows) for at, rows in groups.items()}
    first: dict[tuple[str, str], CauseAtLine] = {}
    for at in sorted(parts, key=lambda at: -int(idle_ns[parts[at]].sum())):
        if at[0] == Cause.HOST_CODE and at[1] is not None:
            first.setdefault((at[1].file, at[1].function), at)
    together: dict[CauseAtLine, list[Rows]] = {}
    for at, rows in parts.items():
        function = (at[1].file, at[1].function) if at[0] == Cause.HOST_CODE and at[1] else None
        one = at if function is None or function in callers else first[function]
        together.setdefault(one, []).append(rows)
    return ((at, np.concatenate(rows), len(rows)) for at, rows in together.items())


def awaited_operations(
    operations: Operations, of_device: Sequence[I64], pieces: GapPieces, rows: npt.NDArray[np.intp]
) -> tuple[I64, I64]:
    """The operations that a GPU waited for in these pieces, and the time for each. of_device: rows of the
    operations by number of the device, as in the pieces.
    """
    found, idle_ns = [], pieces.end_ns[rows] - pieces.start_ns[rows]
    for number, mine in grouped(np.arange(len(rows)), pieces.device[rows]):
        its = of_device[number]
        its = its[np.argsort(operations.start_ns[its], kind="stable")]
        until = np.searchsorted(operations.start_ns[its], pieces.end_ns[rows[mine]], "left")
        found.append((its[np.minimum(until, len(its) - 1)], idle_ns[mine]))
    ended, waited_ns = (np.concatenate(column) for column in zip(*found, strict=True))
    operation, row = np.unique(ended, return_inverse=True)  # a gap has several pieces
    return operation, np.bincount(row, weights=waited_ns).astype(np.int64)
