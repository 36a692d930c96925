# SPDX-License-Identifier: Apache-2.0
"""What the GPUs of a process did while and after the host waited."""

from __future__ import annotations

import numpy as np

from profiling_lab import _analysis
from profiling_lab.trace.columns import I32, I64
from profiling_lab.trace.trace import Trace

_BLEED_NS = 1000  # clocks of host and GPU are aligned no better than this


def busy_within(trace: Trace, process: I32, start_ns: I64, end_ns: I64) -> I64:
    """Per stretch the time in which any GPU of its process worked."""
    out = np.zeros(len(process), dtype=np.int64)
    for number in np.unique(process).tolist():
        rows = np.flatnonzero(process == number)
        begins, ends = _busy(trace, number)
        done = np.concatenate([[0], np.cumsum(ends - begins)])
        out[rows] = _before(begins, ends, done, end_ns[rows]) - _before(begins, ends, done, start_ns[rows])
    return out


def idle_after(trace: Trace, process: I32, start_ns: I64, end_ns: I64) -> I64:
    """Per stretch the idle time, since its start, of the gap around its end: until the GPUs work again.

    A gap is charged once, to the stretch that ended in it first. Before the first and after the last
    operation nothing is idle, nor is what lies outside of the window.
    """
    out = np.zeros(len(process), dtype=np.int64)
    for number in np.unique(process).tolist():
        mine = np.flatnonzero(process == number)
        begins, ends = _busy(trace, number)
        # The first operation that starts after the stretch; the gap is in front of it.
        row = np.searchsorted(begins, end_ns[mine] + _BLEED_NS, "right")
        inside = (row > 0) & (row < len(begins))
        inside[inside] = ends[row[inside] - 1] <= end_ns[mine[inside]] + _BLEED_NS
        rows = np.flatnonzero(inside)
        rows = rows[np.argsort(end_ns[mine[rows]], kind="stable")]
        _, first = np.unique(row[rows], return_index=True)
        rows = rows[first]
        gap_start = np.maximum(ends[row[rows] - 1], start_ns[mine[rows]])
        out[mine[rows]] = _in_window(trace, number, gap_start, np.maximum(begins[row[rows]], gap_start))
    return out


def _in_window(trace: Trace, process: int, start_ns: I64, end_ns: I64) -> I64:
    if trace.window is None:
        return end_ns - start_ns
    row, begins, ends = trace.window.gpu.cut(
        np.full(len(start_ns), process, dtype=np.int32), start_ns, end_ns
    )
    out = np.zeros(len(start_ns), dtype=np.int64)
    np.add.at(out, row, ends - begins)
    return out


def _busy(trace: Trace, process: int) -> tuple[I64, I64]:
    operations = trace.operations
    rows = operations.process == process
    return _analysis.merged(operations.start_ns[rows], operations.end_ns[rows])


def _before(begins: I64, ends: I64, done: I64, time_ns: I64) -> I64:
    """Busy time before each moment."""
    row = np.searchsorted(begins, time_ns, "right")
    if not len(begins):
        return np.zeros(len(time_ns), dtype=np.int64)
    over = np.where(row > 0, ends[np.maximum(row, 1) - 1] - time_ns, 0)
    return np.asarray(done[row] - np.maximum(over, 0), dtype=np.int64)
