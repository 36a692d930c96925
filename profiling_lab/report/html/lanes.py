# SPDX-License-Identifier: Apache-2.0
"""The lanes of the timeline: idle time by cause and streams per GPU; lines, calls and ranges per thread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.report.html.device_lanes import add_device_lanes
from profiling_lab.report.html.lane import Lanes
from profiling_lab.report.html.names import Names
from profiling_lab.report.html.thread_lanes import ThreadLanes
from profiling_lab.trace import Trace
from profiling_lab.trace.columns import FARTHEST_NS, I32, I64


def lanes_of(trace: Trace, own_row: I32) -> Lanes:
    """Every event of a trace in its lane. `own_row`: see Stacks.own_rows."""
    origin_ns, end_ns = _span(trace)
    out = Lanes(origin_ns, end_ns - origin_ns, Names(), [], [], [], [])
    if len(trace.operations):
        add_device_lanes(trace, own_row, out)
    ThreadLanes(trace, own_row, out).add()
    return out


def _span(trace: Trace) -> tuple[int, int]:
    """From the first thing recorded to the last one, leaving out times that no clock shows.

    Around a part of a trace there are ranges that reach far beyond it: they do not count.
    """
    first, last = [], []
    shown = (trace.operations, trace.calls) if trace.window else (trace.operations, trace.calls, trace.ranges)
    for table in shown:
        start = table.start_ns[_is_sane(table.start_ns)]
        end = table.end_ns[_is_sane(table.end_ns)]
        if len(start):
            first.append(int(start.min()))
            last.append(max(int(start.max()), int(end.max(initial=start.max()))))
    return (min(first), max(last)) if first else (0, 0)


def _is_sane(time_ns: I64) -> npt.NDArray[np.bool_]:
    """Ranges that never ended and damaged times lie farther."""
    sane: npt.NDArray[np.bool_] = (time_ns > -FARTHEST_NS) & (time_ns < FARTHEST_NS)
    return sane
