# SPDX-License-Identifier: Apache-2.0
"""The properties of a trace of rocprofv3, and which of its options record what is missing."""

from __future__ import annotations

from profiling_lab.trace.columns import OperationKind
from profiling_lab.trace.facts import Gpu, Recorded, TraceInfo
from profiling_lab.trace.rocprof.records import Records
from profiling_lab.trace.source import Tables

METHOD = "software (records of rocprofiler-sdk)"
STACKS = "not rocprofv3: torch.profiler with with_stack=True"


def rocprof_info(records: Records, gpus: tuple[Gpu, ...], whole: Tables) -> TraceInfo:
    kinds = whole.operations.kind
    starts = [p.init_ns for p in records.processes if p.init_ns > 0]
    ends = [p.fini_ns for p in records.processes if p.fini_ns > 0]
    return TraceInfo(
        path=str(whole.path),
        file_bytes=records.file_bytes,
        product="rocprofv3",
        schema=records.schema,
        started_utc="",
        duration_ns=max(ends) - min(starts) if starts and ends and max(ends) > min(starts) else None,
        gpus=gpus,
        driver="",
        processes=tuple(f"pid {p.pid} {p.command}".rstrip() for p in records.processes),
        recorded=(
            Recorded("kernels", "kernels", int((kinds == OperationKind.KERNEL).sum()), "--kernel-trace"),
            Recorded("copies", "copies", int((kinds == OperationKind.COPY).sum()), "--memory-copy-trace"),
            Recorded("calls", "HIP API calls", len(whole.calls), "--hip-trace"),
            Recorded("python_stacks", "Python stacks of API calls", 0, STACKS),
            Recorded("ranges", "ROCTx ranges", len(whole.ranges), "--marker-trace, if the program makes any"),
            Recorded(
                "memory",
                "memory allocations and frees",
                len(records.allocations["time"]),
                "--memory-allocation-trace",
            ),
        ),
        recorder=(),
        options=(),
        method=METHOD,
        ranks=(),
        events=None,
        overhead_ns=None,
        warnings=(),
    )
