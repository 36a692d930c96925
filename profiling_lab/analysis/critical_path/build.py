# SPDX-License-Identifier: Apache-2.0
"""The graph of a trace."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.calls import host_calls
from profiling_lab.analysis.critical_path.device import add_device, add_operations
from profiling_lab.analysis.critical_path.graph import Graph, GraphBuilder
from profiling_lab.analysis.critical_path.host import add_host
from profiling_lab.analysis.critical_path.launched import launched
from profiling_lab.analysis.critical_path.sites import call_sites, operation_sites
from profiling_lab.analysis.critical_path.waits import add_waits
from profiling_lab.errors import NotEnoughDataError
from profiling_lab.trace.platform import in_words_of
from profiling_lab.trace.trace import Trace


def build_graph(trace: Trace, own: tuple[str, ...]) -> Graph:
    """Of a whole trace. Raises NotEnoughDataError where no operation has its launch."""
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
    of_call, of_operation = call_sites(trace, builder, own), operation_sites(trace, builder, own)
    by_launch = launched(trace, builder, calls)
    held = add_waits(trace, builder, calls, by_launch, end, of_call)
    add_host(trace, builder, calls, held, of_call, own)
    add_device(trace, builder, by_launch, begin, end, of_operation, of_call)
    thread = trace.calls.thread[calls.rows]
    main = {
        process: np.concatenate([calls.begin[thread == number], calls.end[thread == number]])
        for process, number in calls.main.items()
    }
    return builder.build((begin, end), main)
