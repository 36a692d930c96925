# SPDX-License-Identifier: Apache-2.0
"""Where the host was while the GPU idled: the lines that samples of its Python stacks found.

The launch that ends a gap names the line the host was on its way to. What it did before, in lines that launch
nothing, only samples show it. Gaps between the same two lines are alike: their samples count together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.analysis.gaps.pieces import GapPieces
from profiling_lab.analysis.gaps.rows import sampled_pieces
from profiling_lab.records import dataclass
from profiling_lab.trace.extras import HostSamples
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame

_LOADER = "/torch/utils/data/"
_OF_WORKERS = ("_get_data", "_try_get_data")
"""of the DataLoader with workers: waits for the next batch"""
_ENOUGH_SAMPLES = 2
_MOST_OF_IT_FRAC = 0.3
_OTHER_THREADS_FRAC = 0.5
"""another thread that runs Python in this share of the samples holds the lock (the GIL)"""


@dataclass(frozen=True, slots=True)
class HostLine:
    """Where the host was in a group of pieces."""

    frame: Frame | None
    loads: Cause | None
    """inside of torch's DataLoader, which the line calls: it loads, or waits for its workers"""
    rival: Frame | None
    """the line at which another thread ran Python all the while"""


_WAITING = re.compile(
    r"\bsleep\(|\.(wait|acquire|recv|select|poll|result)\w*\(|\bwith [\w.]*(lock|mutex|condition)\w*\b|"
    r"queue\w*\.(get|put)\(|\b(de)?compress\w*\(",
    re.IGNORECASE,
)
"""what a line says that calls something which waits or works without the GIL"""


def host_lines(
    pieces: GapPieces,
    groups: dict[int, npt.NDArray[np.intp]],
    samples: HostSamples,
    ownership: Ownership,
    texts: Mapping[tuple[str, int], str],
) -> dict[int, HostLine]:
    """Per group of pieces where samples found the host; groups with too few samples are left out. texts: the
    source of the lines, as far as it is known.
    """
    if not len(samples) or not samples.stacks:
        return {}
    piece_of = sampled_pieces(samples, pieces)
    own = [_own_frame(stack, ownership) for stack in samples.stacks]
    loads = [_calls_loader(stack, ownership) for stack in samples.stacks]
    awaits = [any(_awaits_worker(frame) for frame in stack) for stack in samples.stacks]
    runs = [
        bool(stack) and ownership.is_own(stack[0].file) and not _waits(stack[0], texts)
        for stack in samples.stacks
    ]
    by_piece: dict[int, list[int]] = {}
    for row in np.flatnonzero(piece_of >= 0).tolist():
        by_piece.setdefault(int(piece_of[row]), []).append(row)
    found: dict[int, HostLine] = {}
    at_moment: dict[int, list[int]] = {}
    for row, moment in enumerate(samples.time_ns.tolist()):
        at_moment.setdefault(moment, []).append(row)
    for group, rows in groups.items():
        mine = [row for piece in rows.tolist() for row in by_piece.get(piece, []) if samples.stack[row] >= 0]
        if len(mine) < _ENOUGH_SAMPLES:
            continue
        loader_lines = Counter(loads[samples.stack[row]] for row in mine)
        loader_lines.pop(None, None)
        lines = Counter(own[samples.stack[row]] for row in mine)
        lines.pop(None, None)
        in_loader = sum(loader_lines.values()) >= len(mine) / 2
        best = (loader_lines if in_loader else lines).most_common(1)
        if not best or best[0][1] < _MOST_OF_IT_FRAC * len(mine):
            continue
        rivals = Counter(
            own[samples.stack[other]]
            for row in mine
            for other in at_moment[int(samples.time_ns[row])]
            if samples.thread[other] != samples.thread[row]
            and samples.stack[other] >= 0
            and runs[samples.stack[other]]
        )
        rival = rivals.most_common(1)
        held = bool(rival) and sum(rivals.values()) >= _OTHER_THREADS_FRAC * len(mine)
        held = held and not (best[0][0] and _waits(best[0][0], texts))
        waits = sum(awaits[samples.stack[row]] for row in mine) >= sum(loader_lines.values()) / 2
        cause = Cause.LOADING_WORKERS if waits else Cause.DATA_LOADING
        found[group] = HostLine(best[0][0], cause if in_loader else None, rival[0][0] if held else None)
    return found


def _waits(frame: Frame, texts: Mapping[tuple[str, int], str]) -> bool:
    return _WAITING.search(texts.get((frame.file, frame.line), "")) is not None


def _awaits_worker(frame: Frame) -> bool:
    return _LOADER in frame.file and frame.function.split(".")[-1] in _OF_WORKERS


def _own_frame(stack: tuple[Frame, ...], ownership: Ownership) -> Frame | None:
    """The innermost user frame."""
    return next((frame for frame in stack if ownership.is_own(frame.file)), None)


def _calls_loader(stack: tuple[Frame, ...], ownership: Ownership) -> Frame | None:
    """The user's own frame that called torch's DataLoader, if the thread is inside of that."""
    outermost = max((i for i, frame in enumerate(stack) if _LOADER in frame.file), default=None)
    return None if outermost is None else _own_frame(stack[outermost + 1 :], ownership)
