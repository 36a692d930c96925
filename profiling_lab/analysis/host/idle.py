# SPDX-License-Identifier: Apache-2.0
"""What the GPUs of a process did while and after the host waited."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.busy import Busy
from profiling_lab.trace.columns import I32, I64, unique
from profiling_lab.trace.trace import Trace


def busy_within(trace: Trace, process: I32, start_ns: I64, end_ns: I64) -> I64:
    """Per interval the time in which any GPU of its process worked."""
    out = np.zeros(len(process), dtype=np.int64)
    for number in unique(process).tolist():
        rows = np.flatnonzero(process == number)
        out[rows] = _busy(trace, number).busy_within(start_ns[rows], end_ns[rows])
    return out


def idle_after(trace: Trace, process: I32, start_ns: I64, end_ns: I64) -> I64:
    """Per interval the idle time, since its start, of the gap around its end: until the GPUs work again.

    A gap is charged once, to the first interval that ends in it. Before the first and after the last
    operation nothing is idle, nor outside of the window.
    """
    out = np.zeros(len(process), dtype=np.int64)
    for number in unique(process).tolist():
        mine = np.flatnonzero(process == number)
        rows, begins, ends = _busy(trace, number).gaps_around(start_ns[mine], end_ns[mine])
        out[mine[rows]] = _in_window(trace, number, begins, ends)
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


def _busy(trace: Trace, process: int) -> Busy:
    operations = trace.operations
    rows = operations.process == process
    return Busy.of(operations.start_ns[rows], operations.end_ns[rows])
