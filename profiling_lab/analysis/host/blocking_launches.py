# SPDX-License-Identifier: Apache-2.0
"""Launch calls that return only when their kernel has ended, as CUDA_LAUNCH_BLOCKING=1 makes all of them.

A short kernel may end during an ordinary launch call, too. Long ones tell: an ordinary call returns in a few
microseconds, whatever it launches, so that hardly any of them ends before its call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.columns import I64, OperationKind, unique
from profiling_lab.trace.cuda_calls import CudaCall, are_any
from profiling_lab.trace.trace import Trace

LONG_NS = 20_000
"""an ordinary launch call takes 2 to 10 us, with a recorder less than this"""
NEARLY_ALL_FRAC, ENOUGH_LONG = 0.95, 20


def ends_in_its_call(trace: Trace) -> tuple[I64, npt.NDArray[np.bool_]]:
    """The kernels that a call launched by itself, not in a CUDA graph; and of each whether it ran within that
    call.
    """
    operations, calls, call = trace.operations, trace.calls, trace.attribution.call
    rows = np.flatnonzero((operations.kind == OperationKind.KERNEL) & (call >= 0))
    rows = rows[are_any(calls, (CudaCall.LAUNCH,))[call[rows]]]
    begins, returns = calls.start_ns[call[rows]], calls.end_ns[call[rows]]
    return rows, (operations.start_ns[rows] >= begins) & (operations.end_ns[rows] <= returns)


def blocking_launches(trace: Trace) -> I64:
    """The kernels whose launches waited for them, of processes in which launches do; rows of operations."""
    rows, within = ends_in_its_call(trace)
    long, process = trace.operations.duration_ns[rows] >= LONG_NS, trace.operations.process[rows]
    found = [rows[:0]]
    for number in unique(process).tolist():
        of_long = within[long & (process == number)]
        if len(of_long) >= ENOUGH_LONG and of_long.mean() >= NEARLY_ALL_FRAC:
            found.append(rows[within & (process == number)])
    return np.concatenate(found)
