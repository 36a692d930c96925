# SPDX-License-Identifier: Apache-2.0
"""The pieces of idle time that `gap_cause` reports, and how long each is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.analysis.gaps.pieces import GapPieces
from profiling_lab.rules.gap_words import ENDED_BY_A_LAUNCH, REMEDIES
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.columns import I32, I64, OperationKind


def reported(view: View, line: I32, long_ns: float) -> tuple[GapPieces, I64, Mask]:
    """All pieces, the time that each costs, and whether it is reported. `line`: per piece the number of the
    line that the host was in or on its way to. Pauses between two launches are reported from `long_ns` on.
    Shorter ones are the matter of the rules about kernels, but for lines that launch mostly copies: there the
    pauses are host code. What a wait of the host costs is not part of those.
    """
    pieces = view.gap_pieces
    idle_ns = pieces.end_ns - pieces.start_ns
    short = np.isin(pieces.cause, ENDED_BY_A_LAUNCH) & (idle_ns < long_ns)
    of_copies = short & copying_lines(view)[line]
    told = np.isin(pieces.cause, [int(cause) for cause in REMEDIES]) & (~short | of_copies)
    told &= pieces.device < len(view.devices)  # a window may hold a device that does nothing in it
    idle_ns = np.where(of_copies, idle_ns * view.left_without_waits(pieces), idle_ns).astype(np.int64)
    cause = np.where(of_copies, np.int32(Cause.HOST_CODE), pieces.cause)
    return replace(pieces, cause=cause), idle_ns, told


def copying_lines(view: View) -> Mask:
    """Per line number, whether most of what the line launches is copies within the GPU and memsets; False
    last, for what has no line.
    """
    place = view.operation_place
    inside = view.named("memcpy DtoD") | (view.operations.kind == OperationKind.SET)
    number = np.bincount(place[place >= 0], minlength=view.lines)
    copying = np.bincount(place[inside & (place >= 0)], minlength=view.lines)
    return np.append(2 * copying > number, False)
