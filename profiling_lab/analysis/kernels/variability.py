# SPDX-License-Identifier: Apache-2.0
"""Kernels whose launches from one line, in one phase, take very different times."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, dense, median
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class VaryingLaunches:
    """The launches of one kernel from one line, in one phase."""

    rows: I64
    """of the operations"""
    median_ns: int
    beyond_ns: I64
    """per row the time beyond the median"""


def varying_launches(
    trace: Trace, rows: I64, line: I32, at_least: float, spread: float
) -> tuple[VaryingLaunches, ...] | None:
    """Those of which the slowest takes `spread` times the mean; None where no kernel has enough launches.

    rows: operations that are looked at; line: the number of its line, per operation.
    """
    duration, name = trace.operations.duration_ns, trace.operations.name
    lines = line[rows].astype(np.int64) + 1
    key, _ = dense(lines << 34 | name[rows].astype(np.int64) << 2 | trace.attribution.phase[rows])
    count = np.bincount(key, minlength=1)
    if not (count >= at_least).any():
        return None
    total, slowest = np.zeros(len(count)), np.zeros(len(count))
    np.add.at(total, key, duration[rows])
    np.maximum.at(slowest, key, duration[rows])
    varies = ((count >= at_least) & (slowest * count / np.maximum(total, 1) >= spread))[key]
    found = []
    for _, mine in grouped(rows[varies], key[varies]):
        usual_ns = int(median(duration[mine]))
        found.append(VaryingLaunches(mine, usual_ns, np.maximum(duration[mine] - usual_ns, 0)))
    return tuple(found)
