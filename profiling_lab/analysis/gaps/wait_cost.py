# SPDX-License-Identifier: Apache-2.0
"""The GPU's idle time because the host waited instead of queueing work.

Without a wait the host runs ahead of the GPU by as long as it had waited, until the next wait. So a wait
costs at most its own length, and at most the idle time that the host leaves between its begin and the begin
of the next wait. What the host is too slow for anyway remains: a step takes as long as the host without its
waits, or as the GPU, whichever is longer.

Pauses between operations that were queued in time, and waits of a stream for an event, are no such idle
time, nor is what the host did meanwhile for other reasons (_OTHERS).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.busy import Busy
from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.analysis.gaps.pieces import GapPieces
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64

F64: TypeAlias = npt.NDArray[np.float64]
_OTHERS = (
    Cause.DATA_LOADING,
    Cause.GIL_WAIT,
    Cause.GARBAGE_COLLECTION,
    Cause.ALLOCATOR,
    Cause.START_UP,
    Cause.CODE_LOADING,
    Cause.COMPILATION,
    Cause.PROFILER,
)
"""what the host does behind a wait for reasons of its own, of which other rules have findings"""
_QUEUED = (Cause.BETWEEN, Cause.EVENT_WAIT, Cause.LATE_START, Cause.NOT_RECORDED)
"""the host had done its part, or nothing is known of it"""


def late_idle(pieces: GapPieces, process: int, busy: Busy) -> Busy:
    """When all GPUs of a process were idle, and the host could have launched earlier. `busy`: when they
    worked.
    """
    late = (pieces.process == process) & ~np.isin(pieces.cause, (*_OTHERS, *_QUEUED))
    return Busy.of(pieces.start_ns[late], pieces.end_ns[late]).without(busy)


@dataclass(frozen=True, slots=True)
class WaitCosts:
    """The waits of one process and what they cost."""

    each_ns: I64
    """per interval given"""
    begin_ns: I64
    """in order; the time until the next begin belongs to this wait"""
    left_frac: F64
    """of the late idle time from there to the next begin: what would remain without the wait"""

    def left_at(self, time_ns: I64) -> F64:
        """Per moment, the fraction of the late idle time there that would remain without the waits."""
        at = np.searchsorted(self.begin_ns, time_ns, "right")  # 0: before the first wait
        return np.asarray(np.append(1.0, self.left_frac)[at])


def wait_costs(busy: Busy, late: Busy, start_ns: I64, end_ns: I64) -> WaitCosts:
    """`busy`: when the GPUs worked; `late`: from late_idle. Intervals of several threads may overlap: no idle
    time counts twice. Waits that end in the same gap of the GPUs are one: only the first of them waits for
    work, so the others cost their own length, and the first one the rest. Before the first and after the last
    operation there is no time to lose.
    """
    each_ns = np.zeros(len(start_ns), dtype=np.int64)
    if not len(start_ns) or not len(busy.start_ns):
        return WaitCosts(each_ns, each_ns[:0], np.zeros(0))
    end_ns = end_ns.clip(busy.start_ns[0], busy.end_ns[-1])
    start_ns = np.minimum(start_ns.clip(busy.start_ns[0], busy.end_ns[-1]), end_ns)
    rows = np.argsort(start_ns, kind="stable")
    gap = busy.gap_at(end_ns[rows])
    first = np.flatnonzero(np.append(True, (gap[1:] != gap[:-1]) | (gap[1:] < 0)))
    begin_ns = start_ns[rows[first]]
    until_ns = np.append(begin_ns[1:], np.append(late.end_ns, begin_ns).max())
    waited_ns = np.add.reduceat(end_ns[rows] - start_ns[rows], first)
    idle_ns = late.busy_within(begin_ns, until_ns)
    cost_ns = np.minimum(idle_ns, waited_ns)
    length_ns = (end_ns - start_ns)[rows]
    others_ns = length_ns.copy()
    others_ns[first] = 0
    scale = cost_ns / np.maximum(np.maximum(np.add.reduceat(others_ns, first), cost_ns), 1)
    of_wait = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))
    shares_ns = (others_ns * scale[of_wait]).astype(np.int64)
    each_ns[rows] = shares_ns
    each_ns[rows[first]] = cost_ns - np.add.reduceat(shares_ns, first)
    return WaitCosts(each_ns, begin_ns, 1 - cost_ns / np.maximum(idle_ns, 1))
