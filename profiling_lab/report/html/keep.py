# SPDX-License-Identifier: Apache-2.0
"""Which events a page holds one by one, where a trace has more than fit: whole windows, never a sample.

Inside of a kept window everything is there, so that a launch can be followed to its kernel. Elsewhere the
levels of detail still say how busy a lane was and with what.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profiling_lab.records import dataclass
from profiling_lab.report.html.lane import Lane
from profiling_lab.trace.columns import unique

Mask = npt.NDArray[np.bool_]
TimeRange = tuple[int, int]

CHUNKS = 256
"""what the span is cut into where the steps are not small enough to choose from"""


@dataclass(frozen=True, slots=True)
class KeptEvents:
    """Per lane the events that stay, and the windows they were chosen by; None where all stay."""

    masks: list[Mask]
    windows: tuple[TimeRange, ...] | None

    @property
    def events(self) -> int:
        return sum(int(mask.sum()) for mask in self.masks)


def keep(lanes: list[Lane], span_ns: int, wanted: list[TimeRange], at_most: int) -> KeptEvents:
    """Keep all events, or those of windows in the order of `wanted` until there are `at_most`.

    A window that is too large by itself is cut into parts and the first of them are taken.
    """
    if sum(map(len, lanes)) <= at_most:
        return KeptEvents([np.ones(len(lane), dtype=bool) for lane in lanes], None)
    chunk_ns = max(1, -(-span_ns // CHUNKS))
    # Evenly spread after what was asked for.
    spread = sorted(range(CHUNKS), key=lambda i: int(f"{i:08b}"[::-1], 2))
    candidates = [part for window in wanted for part in _parts(window, chunk_ns)]
    candidates += [(i * chunk_ns, min((i + 1) * chunk_ns, span_ns)) for i in spread]
    chosen: tuple[TimeRange, ...] = ()
    left = at_most
    for window in candidates:
        events = sum(_begin_in(lane, part) for part in _without(window, chosen) for lane in lanes)
        if events <= left:
            chosen = _merged([*chosen, window])
            left -= events
        if left < at_most // 50:
            break
    masks = [np.zeros(len(lane), dtype=bool) for lane in lanes]
    for lane, mask in zip(lanes, masks, strict=True):
        for start_ns, end_ns in chosen:
            mask |= _inside(lane, start_ns, end_ns)
    _with_their_launches(lanes, masks)
    return KeptEvents(masks, chosen)


def _parts(window: TimeRange, chunk_ns: int) -> list[TimeRange]:
    start_ns, end_ns = window
    edges = [*range(start_ns, end_ns, chunk_ns), end_ns]
    return list(pairwise(edges))


def _begin_in(lane: Lane, window: TimeRange) -> int:
    first, last = np.searchsorted(lane.start_ns, window).tolist()
    return int(last - first)


def _without(window: TimeRange, chosen: tuple[TimeRange, ...]) -> list[TimeRange]:
    """The parts of a window that are in no chosen one; these are in order and apart."""
    start_ns, end_ns = window
    out = []
    for low, high in chosen:
        if high <= start_ns or low >= end_ns:
            continue
        if low > start_ns:
            out.append((start_ns, low))
        start_ns = high
    return [*out, (start_ns, end_ns)] if start_ns < end_ns else out


def _inside(lane: Lane, start_ns: int, end_ns: int) -> Mask:
    mask: Mask = (lane.start_ns < end_ns) & (lane.end_ns > start_ns)
    return mask


def _merged(windows: list[TimeRange]) -> tuple[TimeRange, ...]:
    out: list[TimeRange] = []
    for start_ns, end_ns in sorted(windows):
        if out and start_ns <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end_ns))
        else:
            out.append((start_ns, end_ns))
    return tuple(out)


def _with_their_launches(lanes: list[Lane], masks: list[Mask]) -> None:
    """The GPU runs behind its launches: these may lie before the window."""
    streams = [(lane, mask) for lane, mask in zip(lanes, masks, strict=True) if lane.kind == "stream"]
    if not streams:
        return
    launching = unique(np.concatenate([lane.more["call"][mask] for lane, mask in streams]))
    for lane, mask in zip(lanes, masks, strict=True):
        if lane.kind == "calls":
            mask |= np.isin(lane.rows, launching)
