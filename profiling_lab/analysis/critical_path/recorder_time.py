# SPDX-License-Identifier: Apache-2.0
"""What recording adds to the calls of a program: without a recording each is shorter by it.

Our recorder measures its callbacks. CUPTI does not say what its own work takes: it makes the record of each
operation while that is launched, on the launching thread. So its part is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.cuda_calls import COPIES, CudaCall, are_any
from profiling_lab.trace.trace import Trace

CUPTI_TIMES = 5.5
"""what CUPTI adds to a call that makes a record, for each nanosecond that our callback takes in the mean:
what the program does in between has used the caches of both, and both are slower on a slower host. Measured
on two hosts with an H200: 3.3 on the faster one, with callbacks of 0.18 us in a loop of launches and of 0.94
us in a step of Hugging Face; 5.2 to 7.6 on the slower one, with launches, copies of all kinds and reads of
values, which do not differ, and 8.0 in a step of Hugging Face (recorder_overhead.jsonl and
recorder_calls.jsonl in benchmarks/results)"""
_LONGEST_MEAN_NS = 940
"""of callbacks, in a long recording; in a short one the first calls, which take far longer, raise it"""
SAID_FRAC, _CALLS_FRAC = 0.01, 0.05
"""of a step, from which what recording takes is said; of a path in calls, from which it may be that much"""
_MAKES_RECORDS = (CudaCall.LAUNCH, CudaCall.GRAPH_LAUNCH, *COPIES, CudaCall.PREFETCH, CudaCall.SET)


@dataclass(frozen=True, slots=True)
class RecorderTime:
    """Per call of a trace. Where a call is shorter than this, it is all that the recorder can have taken."""

    inside_ns: I64
    """from its begin on"""
    behind_ns: I64
    """from its end on"""


def recorder_time(trace: Trace) -> RecorderTime:
    """Nothing for processes whose recording does not say what it took."""
    calls = trace.calls
    inside_ns, behind_ns = np.zeros(len(calls), dtype=np.int64), np.zeros(len(calls), dtype=np.int64)
    makes_records = are_any(calls, _MAKES_RECORDS)
    for process in unique(calls.process).tolist():
        facts = _facts(trace, process)
        if (noted := _noted(facts, "overhead_callback_ns")) is None:
            continue
        mine = calls.process == process
        each_ns = min(noted, _LONGEST_MEAN_NS)
        # Older recordings say what a callback takes in the mean, all of it; newer ones what each took.
        exit_ns = min(_noted(facts, "overhead_exit_ns") or 0, each_ns)
        own_ns = np.where(calls.own_ns < 0, each_ns - exit_ns, calls.own_ns)
        inside_ns[mine] = (own_ns + np.where(makes_records, round(CUPTI_TIMES * each_ns), 0))[mine]
        behind_ns[mine] = exit_ns
    return RecorderTime(inside_ns, behind_ns)


def is_noted(trace: Trace, process: int) -> bool:
    """Whether the recording of a process says what it took."""
    return _noted(_facts(trace, process), "overhead_callback_ns") is not None


def recorder_note(noted: bool, recorded_ns: int, plain_ns: int, calls_frac: float) -> tuple[str, ...]:
    """What recording does to a step, where that matters. calls_frac: of its path, in CUDA_CALLS."""
    if not noted:
        why = "the recording does not say what it took of the calls: where the host sets the pace, steps are "
        return (
            (f"{why}shorter without it, and so may be what a change wins",)
            if calls_frac >= _CALLS_FRAC
            else ()
        )
    if recorded_ns - plain_ns < SAID_FRAC * recorded_ns:
        return ()
    return (
        f"recorded the step takes {recorded_ns / 1e6:,.3f} ms, without a recording about "
        f"{plain_ns / 1e6:,.3f} ms (what CUPTI takes is an estimate): what a change wins is said of that",
    )


def _facts(trace: Trace, process: int) -> Mapping[str, str]:
    return trace.process_facts.get(trace.pids[process]) or trace.recorder_facts


def _noted(facts: Mapping[str, str], name: str) -> int | None:
    value = facts.get(name, "")
    return int(value) if value.isdecimal() else None
