# SPDX-License-Identifier: Apache-2.0
"""Time by line of one rank, without communication: how long that takes is the other ranks' doing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.gaps.causes import CAUSES, Cause
from profiling_lab.analysis.gaps.pieces import gap_pieces
from profiling_lab.analysis.lines_groups import own_frames
from profiling_lab.records import dataclass
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import I32, I64, dense
from profiling_lab.trace.operation_classes import COPIES, OperationClass
from profiling_lab.trace.ownership import Ownership

KEPT = 300
"""lines kept of one rank, those with most time"""
SEPARATOR = "\t"


@dataclass(frozen=True, slots=True)
class LineTimes:
    """Time per line: GPU time of compute and copies, and idle time by the cause that is charged with it."""

    key: tuple[str, ...]
    """kind of time, line (file:line, '' unknown) and cause of idle time, with SEPARATOR between"""
    total_ns: tuple[int, ...]
    complete: bool
    """nothing was left out: a line that is missing took no time"""


def line_key(kind: str, line: str, cause: str = "") -> str:
    return SEPARATOR.join((kind, line, cause))


def line_times(
    trace: Trace,
    rows: npt.NDArray[np.intp],
    process: int,
    own: tuple[str, ...],
    steps: tuple[I64, I64],
    with_idle: bool,
) -> LineTimes:
    """Sum within steps. rows: the operations of the rank; steps: starts and ends on the GPU's clock.

    An operation belongs to the step in which it begins.
    """
    own_row = trace.stacks.own_rows(Ownership(own))
    sums: dict[str, int] = {}
    _operations(sums, trace, rows[_within(trace.operations.start_ns[rows], *steps)], own_row)
    if with_idle:
        _idle(sums, trace, process, own_row, steps)
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return LineTimes(
        tuple(key for key, _ in ordered[:KEPT]), tuple(ns for _, ns in ordered[:KEPT]), len(ordered) <= KEPT
    )


def _within(time_ns: I64, starts: I64, ends: I64) -> npt.NDArray[np.bool_]:
    at = np.searchsorted(starts, time_ns, side="right") - 1
    inside: npt.NDArray[np.bool_] = at >= 0
    inside[inside] = time_ns[inside] < ends[at[inside]]
    return inside


def _operations(sums: dict[str, int], trace: Trace, rows: npt.NDArray[np.intp], own_row: I32) -> None:
    classes = trace.classes[rows]
    for kind, wanted in (
        ("compute", classes == OperationClass.COMPUTE),
        ("copy", np.isin(classes, COPIES)),
    ):
        here = rows[wanted]
        number, distinct = dense(own_row[trace.attribution.stack[here]])
        total, _ = _analysis.sum_by_key(number, trace.operations.duration_ns[here], len(distinct))
        for row, ns in zip(distinct.tolist(), total.tolist(), strict=True):
            _add(sums, line_key(kind, _line(trace, own_row, row)), ns)


def _idle(sums: dict[str, int], trace: Trace, process: int, own_row: I32, steps: tuple[I64, I64]) -> None:
    pieces = gap_pieces(trace)
    mine = np.flatnonzero((pieces.process == process) & _within(pieces.start_ns, *steps))
    row = own_row[pieces.stack[mine]]
    number, distinct = dense(pieces.cause[mine].astype(np.int64) << 32 | row)
    total, _ = _analysis.sum_by_key(number, (pieces.end_ns - pieces.start_ns)[mine], len(distinct))
    for pair, ns in zip(distinct.tolist(), total.tolist(), strict=True):
        cause = CAUSES[Cause(pair >> 32)]
        _add(sums, line_key("idle", _line(trace, own_row, pair & 0xFFFFFFFF), cause), ns)


def _line(trace: Trace, own_row: I32, row: int) -> str:
    frames = own_frames(trace.stacks, own_row, row)
    return f"{frames[0].file}:{frames[0].line}" if frames else ""


def _add(sums: dict[str, int], key: str, ns: int) -> None:
    sums[key] = sums.get(key, 0) + ns
