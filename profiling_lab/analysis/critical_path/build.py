# SPDX-License-Identifier: Apache-2.0
"""The graph of a trace."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.calls import host_calls
from profiling_lab.analysis.critical_path.device import add_device, add_operations
from profiling_lab.analysis.critical_path.graph import Graph, GraphBuilder
from profiling_lab.analysis.critical_path.host import add_host
from profiling_lab.analysis.critical_path.launched import launched
from profiling_lab.analysis.critical_path.recorder_time import recorder_time
from profiling_lab.analysis.critical_path.sites import call_sites, operation_sites
from profiling_lab.analysis.critical_path.waits import add_waits
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.records import dataclass
from profiling_lab.trace.columns import I64, full
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Moments:
    """Where the rows of a trace are in its graph; -1 for what is not in it."""

    begin: I64
    """per operation"""
    end: I64
    call_begin: I64
    """per call; that of the call around it for one inside"""
    call_end: I64


def build_graph(trace: Trace, own: tuple[str, ...]) -> Graph:
    """Of a whole trace. Raises NotEnoughDataError where no operation has its launch."""
    return build_with_moments(trace, own)[0]


def build_with_moments(trace: Trace, own: tuple[str, ...]) -> tuple[Graph, Moments]:
    """The same, and where operations and calls are in it."""
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    if not (trace.attribution.call >= 0).any():
        why = "without calls of the CUDA API there is no path from the host to the GPU; nsys records them "
        why += "with --trace=cuda, torch.profiler with ProfilerActivity.CPU"
        raise NotEnoughDataError(
            f"{trace.path} has no launches of its GPU operations: {in_words_of(trace, why)}"
        )
    builder = GraphBuilder()
    calls = host_calls(trace, builder)
    begin, end = add_operations(trace, builder)
    call_site, operation_site = call_sites(trace, builder, own), operation_sites(trace, builder, own)
    by_launch = launched(trace, builder, calls)
    held = add_waits(trace, builder, calls, by_launch, end, call_site)
    recorder = recorder_time(trace)
    add_host(trace, builder, calls, held, call_site, own, recorder)
    add_device(trace, builder, by_launch, begin, end, operation_site, call_site, recorder)
    thread = trace.calls.thread[calls.rows]
    main = {
        process: np.concatenate([calls.begin[thread == number], calls.end[thread == number]])
        for process, number in calls.main.items()
    }
    graph = builder.build((begin, end), main)
    of_call = calls.number
    known = of_call >= 0
    call_begin, call_end = full(len(of_call), -1), full(len(of_call), -1)
    call_begin[known] = builder.place[calls.begin[of_call[known]]]
    call_end[known] = builder.place[calls.end[of_call[known]]]
    return graph, Moments(builder.place[begin], builder.place[end], call_begin, call_end)
