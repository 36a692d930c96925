# SPDX-License-Identifier: Apache-2.0
"""A row of the timeline, and what all rows share."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.report.html.names import Names
from profiling_lab.trace.columns import I32, I64, U8
from profiling_lab.trace.phases import LinePhase


class SliceKind(IntEnum):
    """What a slice is, as its colour shows."""

    FORWARD = LinePhase.FORWARD
    BACKWARD = LinePhase.BACKWARD
    RECOMPUTE = LinePhase.RECOMPUTE
    OPTIMIZER = LinePhase.OPTIMIZER
    UNKNOWN_PHASE = LinePhase.UNKNOWN
    COMMUNICATION = 5
    COPY = 6
    SET = 7
    CALL = 8
    WAIT = 9
    ALLOCATION = 10
    LINE = 11
    RANGE = 12
    IDLE_HOST = 13
    IDLE_DEVICE = 14
    IDLE_UNKNOWN = 15


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the timeline; events are sorted by start, times count from the beginning of the span."""

    group: int
    kind: str
    """'idle', 'memory', 'stream', 'line', 'samples', 'calls' or 'ranges'"""
    label: str
    start_ns: I64
    end_ns: I64
    name: I32
    """row of the page's names"""
    tint: U8
    stack: I32
    """row of Trace.stacks, 0 without one"""
    rows: I64
    """rows of the table of the trace that the lane shows"""
    more: dict[str, npt.NDArray[np.integer]] = field(default_factory=dict)
    """what only lanes of this kind have, by name"""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(slots=True)
class Lanes:
    """All lanes with what they share."""

    origin_ns: int
    span_ns: int
    names: Names
    groups: list[str]
    lanes: list[Lane]
    notes: list[str]
    """what was left out, and why"""
    shapes: list[str]
    """how kernels were launched: what `shape` of a stream's events counts from 1, 0 being unknown"""

    def add(
        self,
        kind: str,
        label: str,
        rows: npt.NDArray[np.integer],
        start_ns: I64,
        end_ns: I64,
        name: I32,
        tint: U8,
        stack: I32,
        **more: npt.NDArray[np.integer],
    ) -> None:
        """One lane of the newest group from `rows` of columns that hold more than the lane."""
        low, high = self.origin_ns, self.origin_ns + self.span_ns
        start, end = start_ns[rows].clip(low, high) - low, end_ns[rows].clip(low, high) - low
        order = np.lexsort((-end, start))
        rows, start, end = rows[order], start[order], end[order]
        self.lanes.append(
            Lane(
                group=len(self.groups) - 1,
                kind=kind,
                label=label,
                start_ns=start,
                end_ns=np.maximum(start, end),
                name=name[rows],
                tint=tint[rows],
                stack=stack[rows],
                rows=rows.astype(np.int64),
                more={key: column[rows] for key, column in more.items()},
            )
        )
