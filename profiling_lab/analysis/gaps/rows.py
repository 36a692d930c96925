# SPDX-License-Identifier: Apache-2.0
"""Pieces of idle time summed by cause and line."""

from __future__ import annotations

from dataclasses import field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.analysis.gaps.causes import CAUSES, Cause
from profiling_lab.analysis.gaps.pieces import GapPieces
from profiling_lab.analysis.lines_groups import own_frames
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, dense, full, unique
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class GapRow:
    """Idle time of one cause at one line of the program."""

    key: str
    """stable over runs of the same program"""
    cause: str
    """one of gap_causes.CAUSES' texts"""
    what: str
    """the call, the range or the blocking function, '' where there is none"""
    frame: Frame | None
    """the user's line; None where none is known"""
    exact: bool
    """the host was in this line; else it was between a line of `after` and the call that this line made"""
    after: tuple[tuple[Frame, int], ...]
    """lines of the calls before, each with its idle time, the largest first"""
    until: tuple[tuple[Frame, int], ...]
    """lines of the launches that ended these gaps, where they are others; each with its idle time"""
    sampled: tuple[tuple[str, int], ...]
    """where samples found the host meanwhile (host_samples.HostSamples.places), each with their number"""
    idle_ns: int
    pieces: int
    in_steps_ns: int
    """the part of it inside of steps"""
    per_step_ns: int | None
    """`in_steps_ns` per step and device; None where the trace has no steps"""
    share_frac: float
    """of all idle time"""


@dataclass(slots=True)
class _Sums:
    """What adds up to one row."""

    idle_ns: int = 0
    inside_ns: int = 0
    pieces: int = 0
    after: dict[Frame, int] = field(default_factory=dict)
    until: dict[Frame, int] = field(default_factory=dict)
    sampled: dict[str, int] = field(default_factory=dict)


_Key = TypeVar("_Key", Frame, str)


def gap_rows(
    trace: Trace,
    pieces: GapPieces,
    own_row: I32,
    inside_ns: I64 | None,
    steps: int,
    samples: HostSamples,
) -> list[GapRow]:
    """Rows per (cause, what, line); Python looks at each distinct combination once."""
    idle_ns = pieces.end_ns - pieces.start_ns
    stacks = (own_row[stack] for stack in (pieces.stack, pieces.after, pieces.until))
    number, distinct = _combined(pieces.cause, pieces.what, pieces.exact.astype(np.int32), *stacks)
    total, count = _analysis.sum_by_key(number, idle_ns, len(distinct))
    inside = total
    if inside_ns is not None:
        inside, _ = _analysis.sum_by_key(number, inside_ns, len(distinct))
    piece_of = sampled_pieces(samples, pieces)
    sampled: dict[int, dict[str, int]] = {}
    for key, place in zip(
        number[piece_of[piece_of >= 0]].tolist(), samples.place[piece_of >= 0].tolist(), strict=True
    ):
        _add(sampled.setdefault(key, {}), samples.places[place], 1)
    sums: dict[tuple[Cause, str, Frame | None, bool], _Sums] = {}
    for i, (cause, what, exact, row, after_row, until_row) in enumerate(distinct):
        frame = _frame(trace, own_row, row)
        after, until = _frame(trace, own_row, after_row), _frame(trace, own_row, until_row)
        kind = Cause(cause)
        # Where there is a line it says more than the operator or range around the host's code.
        shown = "" if frame and kind in (Cause.HOST_CODE, Cause.AFTER_WAIT) else pieces.names[what]
        entry = sums.setdefault((kind, shown, frame, bool(exact) and frame is not None), _Sums())
        entry.idle_ns += int(total[i])
        entry.inside_ns += int(inside[i])
        entry.pieces += int(count[i])
        if after is not None and not exact:
            _add(entry.after, after, int(total[i]))
        if until is not None and until != frame:
            _add(entry.until, until, int(total[i]))
        for place, times in sampled.get(i, {}).items():
            _add(entry.sampled, place, times)
    all_ns = int(idle_ns.sum())
    rows = [
        GapRow(
            key=f"{CAUSES[cause]}:{what}:{f'{frame.file}:{frame.line}' if frame else ''}:{int(exact)}",
            cause=CAUSES[cause],
            what=what,
            frame=frame,
            exact=exact,
            after=_largest(entry.after),
            until=_largest(entry.until),
            sampled=_largest(entry.sampled),
            idle_ns=entry.idle_ns,
            pieces=entry.pieces,
            in_steps_ns=entry.inside_ns if steps else 0,
            per_step_ns=entry.inside_ns // steps if steps else None,
            share_frac=entry.idle_ns / all_ns if all_ns else 0.0,
        )
        for (cause, what, frame, exact), entry in sums.items()
    ]
    return sorted(rows, key=lambda row: (-(row.in_steps_ns if steps else row.idle_ns), -row.idle_ns, row.key))


def _add(into: dict[_Key, int], key: _Key, value: int) -> None:
    into[key] = into.get(key, 0) + value


def _largest(sums: dict[_Key, int]) -> tuple[tuple[_Key, int], ...]:
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def sampled_pieces(samples: HostSamples, pieces: GapPieces) -> I32:
    """Per sample the piece that its thread was in charge of then, -1 for none: on one device, if several
    waited for the thread.
    """
    out: I32 = full(len(samples), -1, np.int32)
    for thread in sorted({*unique(samples.thread).tolist()} & {*unique(pieces.thread).tolist()}):
        rows = np.flatnonzero(samples.thread == thread)
        for device in unique(pieces.device).tolist():
            mine = np.flatnonzero((pieces.thread == thread) & (pieces.device == device))
            mine = mine[np.argsort(pieces.start_ns[mine])]
            if len(mine):
                at = np.maximum(
                    np.searchsorted(pieces.start_ns[mine], samples.time_ns[rows], side="right") - 1, 0
                )
                time_ns = samples.time_ns[rows]
                hit = (pieces.start_ns[mine[at]] <= time_ns) & (time_ns < pieces.end_ns[mine[at]])
                out[rows[hit]] = mine[at[hit]]
    return out


def _combined(*columns: npt.NDArray[np.integer]) -> tuple[I32, list[tuple[int, ...]]]:
    """A number per distinct combination, and the combinations."""
    number = np.zeros(len(columns[0]), dtype=np.int32)
    for column in columns:
        local, distinct = dense(np.asarray(column, dtype=np.int64))
        number, _ = dense(number.astype(np.int64) * (len(distinct) + 1) + local)
    size = int(number.max()) + 1 if len(number) else 0
    first = np.zeros(size, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return number, [tuple(int(column[i]) for column in columns) for i in first.tolist()]


def _frame(trace: Trace, own_row: I32, row: int) -> Frame | None:
    frames = own_frames(trace.stacks, own_row, row)
    return frames[0] if frames else None
