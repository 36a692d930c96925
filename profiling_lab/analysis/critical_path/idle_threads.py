# SPDX-License-Identifier: Apache-2.0
"""Threads of a pool that have nothing to do: they wait for work that another thread gives them.

So what such a thread does next follows what others did, not what it did itself long before. Only samples tell
that a thread had no work: it was in the loop of its pool, and nothing of the program was on its stack.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiling_lab.analysis.critical_path.calls import HostCalls
from profiling_lab.analysis.critical_path.sites import Between, between_of
from profiling_lab.trace.columns import I64, full, unique
from profiling_lab.trace.ownership import Ownership
from profiling_lab.trace.stacks import Frame
from profiling_lab.trace.trace import Trace

_LOOPS = (("concurrent/futures/thread.py", "_worker"), ("multiprocessing/pool.py", "worker"))
"""of Python's pools of threads: the file and the function"""
_WAITS = ("/threading.py", "/queue.py")
"""where these wait for work"""


def gave_work(trace: Trace, calls: HostCalls, between: Between) -> I64:
    """Per time between two calls the call of another thread that ended last before the second of them, where
    the thread had no work for most of it; -1 for others. Rows of calls are those of `calls`.
    """
    found = full(len(between.thread), -1)
    samples = trace.samples(Ownership())
    idle = np.array([_without_work(stack) for stack in samples.stacks], dtype=bool)
    if not idle.any():
        return found
    row = between_of(samples, between)
    known = np.flatnonzero((row >= 0) & (samples.stack >= 0))
    seen = np.where(idle[samples.stack[known]], 1, -1)
    waiting = np.flatnonzero(np.bincount(row[known], weights=seen, minlength=len(found)) > 0)
    table = trace.calls
    for thread in unique(between.thread[waiting]).tolist():
        mine = waiting[between.thread[waiting] == thread]
        process = table.process[between.after[mine[0]]]
        others = (table.thread[calls.rows] != thread) & (table.process[calls.rows] == process)
        rows = np.flatnonzero(others)
        rows = rows[np.argsort(table.end_ns[calls.rows[rows]], kind="stable")]
        at = np.searchsorted(table.end_ns[calls.rows[rows]], between.end_ns[mine], "right") - 1
        last = np.append(rows, -1)[at]
        later = (at >= 0) & (table.end_ns[calls.rows[last]] > between.start_ns[mine])
        found[mine[later]] = last[later]
    return found


def _without_work(stack: Sequence[Frame]) -> bool:
    """The innermost frame first."""
    frame = next((frame for frame in stack if not frame.file.endswith(_WAITS)), None)
    return frame is not None and any(
        frame.file.endswith(file) and frame.function.split(".")[-1] == name for file, name in _LOOPS
    )
