# SPDX-License-Identifier: Apache-2.0
"""The pieces of idle time that `gap_cause` reports, and how long each is."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.kinds import HOST_CODE, Kind
from profiling_lab.analysis.critical_path.savings import HostWork, Saving
from profiling_lab.analysis.gaps.by_line import Rows
from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.analysis.gaps.pieces import GapPieces
from profiling_lab.analysis.host.waits import VALUE_BYTES
from profiling_lab.records import replace
from profiling_lab.rules.gap_words import ENDED_BY_A_LAUNCH, REMEDIES
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace import Frame
from profiling_lab.trace.columns import I32, I64, OperationKind
from profiling_lab.trace.spans import Spans

_KINDS = {
    **dict.fromkeys((Cause.HOST_CODE, Cause.AFTER_WAIT, Cause.GIL_WAIT), (*HOST_CODE, Kind.GIL_WAIT)),
    **dict.fromkeys((Cause.DATA_LOADING, Cause.LOADING_WORKERS), (*HOST_CODE, Kind.DATA_LOADING)),
    Cause.CUDA_CALL: (Kind.CUDA_CALL, Kind.LAUNCH, Kind.COPY_CALL),
}
"""what the host no longer does, for each cause; of the others what the cause says"""
_MOST_FRAC = 0.8
OF_PLANS = (
    "cuDNN plans each shape that is new to it on the host: give it few shapes (pad lengths to multiples), or "
    "attention another backend (enable_cudnn_sdp(False))"
)


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
    """Per line number, whether most of what the line launches is memsets, copies within the GPU, and copies
    of more than a value to the host; False last, for what has no line.
    """
    place = view.operation_place
    results = view.named("memcpy DtoH") & (view.operations.size_bytes > VALUE_BYTES)
    inside = view.named("memcpy DtoD") | results | (view.operations.kind == OperationKind.SET)
    number = np.bincount(place[place >= 0], minlength=view.lines)
    copying = np.bincount(place[inside & (place >= 0)], minlength=view.lines)
    return np.append(2 * copying > number, False)


def host_saving(pieces: GapPieces, rows: Rows, cause: Cause) -> Saving:
    """Without what the host did in these pieces, and right before while the GPU was still at work."""
    spans = Spans.of(pieces.process[rows], pieces.start_ns[rows], pieces.end_ns[rows])
    return Saving(host=(HostWork(spans, _KINDS.get(cause) or (Kind(int(cause)),)),))


def remedy(view: View, cause: Cause, place: Frame | None, awaited: I64, idle_ns: I64) -> str:
    """`place`: where the host was. What a line does before it launches a kernel of cuDNN is cuDNN's plan."""
    planned = view.kernels_named(r"cudnn")[awaited]
    if cause != Cause.HOST_CODE or not planned.any():
        return REMEDIES[cause]
    at_place = [line for line in range(view.lines) if view.place(line) == place]
    planned &= np.isin(view.operation_place[awaited], at_place)
    return OF_PLANS if idle_ns[planned].sum() >= _MOST_FRAC * idle_ns.sum() else REMEDIES[cause]


def around(
    view: View, pieces: GapPieces, rows: Rows, place: Frame | None, awaited: I64, weight: I64
) -> Frame | None:
    """The line that calls what the host was in, to copy to the GPU what comes of it; or that made the calls
    before and behind most of these pieces, as in a loop.
    """
    copied = view.named("memcpy HtoD")[awaited]
    if place and weight[copied].sum() >= _MOST_FRAC * max(int(weight.sum()), 1):
        line = view.hottest_line(awaited[copied], weight[copied])
        if line and any({place, line} <= set(stack) for stack in view.samples.stacks):
            return line
    before, after = view.place_of_stack(pieces.after[rows]), view.place_of_stack(pieces.stack[rows])
    idle_ns = pieces.end_ns[rows] - pieces.start_ns[rows]
    same_ns = np.bincount(np.where(before == after, after, -1) + 1, weights=idle_ns)
    number = int(same_ns[1:].argmax()) if len(same_ns) > 1 else -1
    return view.place(number) if number >= 0 and same_ns[number + 1] >= _MOST_FRAC * idle_ns.sum() else None
