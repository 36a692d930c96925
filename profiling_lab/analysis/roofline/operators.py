# SPDX-License-Identifier: Apache-2.0
"""Which operator call of the counted step launched each GPU operation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab import _analysis
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I32, I64, unique
from profiling_lab.trace.extras import WorkRows
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class CountedStep:
    """The GPU operations that the counted step launched."""

    work: WorkRows
    rows: npt.NDArray[np.intp]
    """rows of the trace's operations"""
    operator: I32
    """per row the row of `work` whose call launched it; -1: none did, or its work is not modelled"""
    longest: I64
    """per row of `work` its longest operation, as a row of the trace; -1 if it launched nothing"""


def counted_step(trace: Trace) -> CountedStep:
    """Raises NotEnoughDataError in a recording without counted work, or whose counted step ran nothing."""
    work = trace.work
    if work is None or not len(work):
        raise NotEnoughDataError(f"{trace.path} has no counted work: {_how(trace)}")
    found, calls = trace.attribution, trace.calls
    launched = found.call >= 0
    moment = np.full(len(found.call), -1, np.int64)
    moment[launched] = calls.start_ns[found.call[launched]]
    process = np.where(launched, trace.operations.process, -1)
    inside = np.zeros(len(moment), dtype=bool)
    for number in unique(work.process).tolist():
        of = work.process == number
        first, last = work.start_ns[of].min(), work.end_ns[of].max()
        inside |= (process == number) & (moment >= first) & (moment <= last)
    rows = np.flatnonzero(inside)
    if not len(rows):
        raise NotEnoughDataError(
            f"{trace.path} counted the work of {len(work):,} operators, but no GPU operation of that step "
            "is in this part of the recording"
        )
    # Operators do not nest: one that consists of others is counted as those.
    thread = calls.thread[found.call[rows]]
    _, operator, _ = _analysis.contain(work.start_ns, work.end_ns, work.thread, moment[rows], thread, 0)
    longest = np.full(len(work), -1, np.int64)
    order = np.argsort(trace.operations.duration_ns[rows], kind="stable")
    known = order[operator[order] >= 0]
    longest[operator[known]] = rows[known]  # the last one written is the longest
    return CountedStep(work, rows, operator, longest)


def _how(trace: Trace) -> str:
    state = trace.recorder_facts.get("work_state", "")
    if state and state != "on":
        return f"the recorder says: {state}"
    if trace.is_ours:
        return "record with `profiling-lab record --work`"
    return in_words_of(trace, "only `profiling-lab record --work` counts it")
