# SPDX-License-Identifier: Apache-2.0
"""The operators of torch that launched the GPU's operations, by their names."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.trace.attribution import BLEED_NS
from profiling_lab.trace.columns import full
from profiling_lab.trace.trace import Trace

Mask = npt.NDArray[np.bool_]


def launched_by(trace: Trace, pattern: str) -> Mask:
    """Per operation whether the innermost range around its launch has a name that matches."""
    return np.append(_matching(trace, pattern)[trace.ranges.name], False)[trace.attribution.range]


def innermost_is(trace: Trace, pattern: str, name: str) -> Mask | None:
    """Per operation whether of the ranges around its launch whose names match the innermost one is called
    `name`; None where no name matches.
    """
    ranges = trace.ranges
    marked = _matching(trace, pattern)[ranges.name]
    if not marked.any():
        return None
    rows = np.flatnonzero(ranges.domain == 0)
    times = ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows]
    nothing = np.empty(0, dtype=np.int64)
    parent, _, _ = _analysis.contain(*times, nothing, nothing.astype(np.int32), BLEED_NS)
    nearest = full(len(ranges) + 1, -1, np.int32)
    nearest[rows] = np.append(rows, -1)[_analysis.nearest_marked(parent, marked[rows].astype(np.uint8))]
    named = np.array([*(found == name for found in ranges.names), False])
    of_range = np.append(ranges.name, np.int32(-1))[nearest[trace.attribution.range]]
    return np.asarray(named[of_range])


def _matching(trace: Trace, pattern: str) -> Mask:
    return np.array([bool(re.match(pattern, name)) for name in trace.ranges.names] or [False])
