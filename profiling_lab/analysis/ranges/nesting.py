# SPDX-License-Identifier: Apache-2.0
"""How deep calls and ranges nest."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, I64, full
from profiling_lab.trace.phases import BLEED_NS


def depths(start_ns: I64, end_ns: I64, track: I32) -> I32:
    """How many intervals of the same track lie around each; one that overlaps without nesting is at 0."""
    nothing = np.empty(0, dtype=np.int64)
    parent, _, _ = _analysis.contain(start_ns, end_ns, track, nothing, nothing.astype(np.int32), BLEED_NS)
    depth = full(len(parent), 0, np.int32)
    around = parent.copy()
    while (inside := around >= 0).any():
        depth[inside] += 1
        around[inside] = parent[around[inside]]
    return depth
