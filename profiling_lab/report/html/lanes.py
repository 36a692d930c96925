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
from profiling_lab.trace.columns import FARTHEST_NS, I64, rows_of
from profiling_lab.trace.ownership import Ownership


def lanes_of(trace: Trace, own: tuple[str, ...] = ()) -> Lanes:
    """Every event of a trace in its lane. `own`: see Ownership."""
    samples = trace.samples(Ownership(own))
    samples = rows_of(samples, (samples.stack >= 0) & _is_sane(samples.time_ns))  # those with a Python stack
    origin_ns, end_ns = _span(trace, samples.time_ns)
    out = Lanes(origin_ns, end_ns - origin_ns, Names(), [], [], [], [])
    if len(trace.operations):
        add_device_lanes(trace, trace.stacks.own_rows(Ownership(own)), out)
    ThreadLanes(trace, own, samples, out).add()
    return out


def _span(trace: Trace, sampled_ns: I64) -> tuple[int, int]:
    """From the first thing recorded to the last one, leaving out times that no clock shows.

    Around a part of a trace there are ranges and samples that reach far beyond it: they do not count.
    """
    first, last = [], []
    shown = (trace.operations, trace.calls) if trace.window else (trace.operations, trace.calls, trace.ranges)
    for table in shown:
        start = table.start_ns[_is_sane(table.start_ns)]
        end = table.end_ns[_is_sane(table.end_ns)]
        if len(start):
            first.append(int(start.min()))
            last.append(max(int(start.max()), int(end.max(initial=start.max()))))
    if len(sampled_ns) and not (trace.window and first):
        first.append(int(sampled_ns.min()))
        last.append(int(sampled_ns.max()) + 1)
    return (min(first), max(last)) if first else (0, 0)


def _is_sane(time_ns: I64) -> npt.NDArray[np.bool_]:
    """Ranges that never ended and damaged times lie farther."""
    sane: npt.NDArray[np.bool_] = (time_ns > -FARTHEST_NS) & (time_ns < FARTHEST_NS)
    return sane
