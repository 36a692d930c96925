# SPDX-License-Identifier: Apache-2.0
"""The calls of the host that are in the graph."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.critical_path.graph import CALL_ENDS, GraphBuilder
from profiling_lab.analysis.critical_path.kinds import Kind
from profiling_lab.analysis.host.activity import call_kinds
from profiling_lab.analysis.stats import possible
from profiling_lab.records import dataclass
from profiling_lab.trace.attribution import Phase
from profiling_lab.trace.columns import I32, I64, Trait, full, unique
from profiling_lab.trace.cuda_calls import COPIES, CudaCall, are_any, cuda_calls
from profiling_lab.trace.trace import Trace

_LAUNCHES = (CudaCall.LAUNCH, CudaCall.GRAPH_LAUNCH)
_COPIES = (*COPIES, CudaCall.PREFETCH, CudaCall.SET)


@dataclass(frozen=True, slots=True)
class HostCalls:
    """The calls that are in the graph: of calls inside of others the outermost, by thread and time."""

    rows: I64
    """of the trace's calls"""
    begin: I64
    """moments"""
    end: I64
    number: I32
    """per call of the trace its row here; that of the call around it for one inside; -1 for others"""
    main: dict[int, int]
    """by process the thread that launches most"""


def host_calls(trace: Trace, builder: GraphBuilder) -> HostCalls:
    """Add the calls as moments."""
    calls = trace.calls
    usable = possible(calls.start_ns, calls.end_ns) & (cuda_calls(calls) != CudaCall.POLL)
    rows = np.flatnonzero(usable)
    rows = rows[np.lexsort((-calls.end_ns[rows], calls.start_ns[rows], calls.thread[rows]))]
    outermost = np.ones(len(rows), dtype=bool)
    for first, last in _runs(calls.thread[rows]):
        latest = np.maximum.accumulate(calls.end_ns[rows[first:last]])
        outermost[first + 1 : last] = calls.end_ns[rows[first + 1 : last]] > latest[:-1]
    number = full(len(calls), -1, np.int32)
    number[rows] = np.cumsum(outermost) - 1
    rows = rows[outermost]
    begin, end = builder.spans(calls.start_ns[rows], calls.end_ns[rows], calls.process[rows], CALL_ENDS)
    return HostCalls(rows, begin, end, number, _main_threads(trace))


def _runs(key: npt.NDArray[np.integer]) -> list[tuple[int, int]]:
    """Begin and end of each run of equal keys."""
    cuts = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(key)]
    return [(first, last) for first, last in pairwise(cuts) if last > first]


def _main_threads(trace: Trace) -> dict[int, int]:
    calls, backward = trace.calls, in_backward(trace)
    out = {}
    for process in unique(calls.process).tolist():
        mine = np.flatnonzero((calls.process == process) & ~backward)
        if not len(mine):
            mine = np.flatnonzero(calls.process == process)
        out[process] = int(np.bincount(calls.thread[mine]).argmax())
    return out


def in_backward(trace: Trace) -> npt.NDArray[np.bool_]:
    """Per call whether the autograd engine made it."""
    out: npt.NDArray[np.bool_] = (trace.calls.traits & Trait.IS_BACKWARD) > 0
    found = trace.attribution
    launched = found.call[(found.phase == Phase.BACKWARD) & (found.call >= 0)]
    out[launched] = True
    return out


def kinds_of_calls(trace: Trace) -> I32:
    """The Kind per call."""
    kind = call_kinds(trace.calls).astype(np.int32)
    kind[are_any(trace.calls, _LAUNCHES)] = Kind.LAUNCH
    kind[are_any(trace.calls, _COPIES)] = Kind.COPY_CALL
    return kind
