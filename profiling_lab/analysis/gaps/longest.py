# SPDX-License-Identifier: Apache-2.0
"""The longest gaps, one by one, each with all that filled it."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.analysis.device_spans import device_spans
from profiling_lab.analysis.gaps.causes import CAUSES, Cause
from profiling_lab.analysis.gaps.pieces import GapPieces, gap_pieces
from profiling_lab.analysis.lines_groups import own_frames
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, dense
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class GapPart:
    """A part of a gap with one cause."""

    cause: str
    """one of gap_causes.CAUSES' texts"""
    what: str
    """the call, the range or the blocking function, '' where there is none"""
    frame: Frame | None
    """the user's line; None where none is known"""
    exact: bool
    """the host was in this line; else on its way to it"""
    idle_ns: int


@dataclass(frozen=True, slots=True)
class Gap:
    """One time in which a device did nothing; in a window, the part inside of it."""

    key: str
    pid: int
    device: int
    start_ns: int
    """since the first event of the recording"""
    idle_ns: int
    parts: tuple[GapPart, ...]
    """in order of time"""
    until: Frame | None
    """the user's line that launched what ended it"""

    @property
    def main(self) -> GapPart:
        return max(self.parts, key=lambda part: part.idle_ns)


@dataclass(frozen=True, slots=True)
class GapList:
    gaps: tuple[Gap, ...]
    """the longest first"""
    total_matched: int


def longest_gaps(trace: Trace, own: tuple[str, ...] = (), limit: int | None = None) -> GapList:
    """The longest gaps of all devices.

    Raises UsageError, and NotEnoughDataError if the trace has no GPU operation.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    pieces = gap_pieces(trace)
    own_row = trace.stacks.own_rows(Ownership(own))
    number, gaps = dense(pieces.gap)
    total, _ = _analysis.sum_by_key(number, pieces.end_ns - pieces.start_ns, len(gaps))
    first = np.full(len(gaps), np.iinfo(np.int64).max)
    np.minimum.at(first, number, pieces.start_ns)
    chosen = np.lexsort((first, -total))[:limit]
    order = np.lexsort((pieces.start_ns, number))
    begins = np.searchsorted(number[order], chosen)
    ends = np.searchsorted(number[order], chosen, side="right")
    devices = device_spans(trace).devices
    found = []
    for gap, begin, end in zip(chosen.tolist(), begins.tolist(), ends.tolist(), strict=True):
        rows = order[begin:end].tolist()
        process, ordinal = devices[int(pieces.device[rows[0]])]
        pid, start_ns = trace.pids[process], int(first[gap]) - trace.first_ns
        found.append(
            Gap(
                key=f"{pid}/{ordinal}/{start_ns}",
                pid=pid,
                device=ordinal,
                start_ns=start_ns,
                idle_ns=int(total[gap]),
                parts=tuple(_part(trace, pieces, own_row, row) for row in rows),
                until=_frame(trace, own_row, int(pieces.until[rows[-1]])),
            )
        )
    return GapList(tuple(found), len(gaps))


def _part(trace: Trace, pieces: GapPieces, own_row: I32, row: int) -> GapPart:
    return GapPart(
        cause=CAUSES[Cause(int(pieces.cause[row]))],
        what=pieces.names[pieces.what[row]],
        frame=_frame(trace, own_row, int(pieces.stack[row])),
        exact=bool(pieces.exact[row]),
        idle_ns=int(pieces.end_ns[row] - pieces.start_ns[row]),
    )


def _frame(trace: Trace, own_row: I32, stack: int) -> Frame | None:
    frames = own_frames(trace.stacks, own_row, stack)
    return frames[0] if frames else None
