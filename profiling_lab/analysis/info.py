# SPDX-License-Identifier: Apache-2.0
"""What is in a trace file, how it was captured, and which option would have recorded what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from profiling_lab.trace.columns import NO_SEQUENCE, OperationKind
from profiling_lab.trace.facts import Gpu, Recorded, TraceInfo, utc
from profiling_lab.trace.kineto.events import whole
from profiling_lab.trace.kineto.flows import FlowAgreement
from profiling_lab.trace.kineto.source import ChromeSource
from profiling_lab.trace.nsys.info import OUR_METHOD, gpus_of, rank_texts, sqlite_info
from profiling_lab.trace.step_signs import PROFILER_STEP
from profiling_lab.trace.trace import Trace

__all__ = ["Gpu", "Recorded", "TraceInfo", "gpus", "info"]

_OPTIONS = ("record_shapes", "with_stack", "profile_memory", "with_modules", "with_flops")
_SYNCS = "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)"
_PLAUSIBLE_EPOCH_NS = 10**18  # September 2001: an earlier time is not a date but a running clock


def info(trace: Trace) -> TraceInfo:
    """Read the facts. Works on traces without a GPU operation too."""
    if isinstance(trace.source, ChromeSource):
        return _of_torch_profiler(trace, trace.source)
    return sqlite_info(trace)


def gpus(trace: Trace) -> tuple[Gpu, ...]:
    """The GPUs of the machine, as far as the file describes them."""
    if isinstance(trace.source, ChromeSource):
        return tuple(_chrome_gpu(device) for device in trace.source.events.devices)
    return gpus_of(trace.file)


def _of_torch_profiler(trace: Trace, source: ChromeSource) -> TraceInfo:
    operations, ranges, stacks = trace.operations, trace.ranges, trace.stacks_found
    kinds = [int((operations.kind == kind).sum()) for kind in OperationKind]
    all_times = [t for t in (operations.start_ns, operations.end_ns, trace.calls.start_ns) if len(t)]
    began = min((int(t.min()) for t in all_times), default=0)
    sequences = int((ranges.sequence != NO_SEQUENCE).sum())
    arrows = source.flow_agreement()
    return TraceInfo(
        path=str(trace.path),
        file_bytes=trace.path.stat().st_size,
        product="torch.profiler",
        schema=str(whole(source.events.facts.get("schemaVersion"), 0) or ""),
        started_utc=utc(began) if began > _PLAUSIBLE_EPOCH_NS else "",
        duration_ns=max(int(t.max()) for t in all_times) - began if all_times else None,
        gpus=gpus(trace),
        driver="",
        processes=tuple(f"pid {pid}" for pid in trace.pids),
        recorded=(
            Recorded("kernels", "kernels", kinds[OperationKind.KERNEL], "ProfilerActivity.CUDA"),
            Recorded("copies", "copies", kinds[OperationKind.COPY], ""),
            Recorded("sets", "memory sets", kinds[OperationKind.SET], ""),
            Recorded("syncs", "synchronizations", len(source.events["syncs"]["thread"]), _SYNCS),
            Recorded("calls", "CUDA API calls", len(trace.calls), "ProfilerActivity.CUDA"),
            Recorded("python_stacks", "API calls with a Python stack", stacks.recorded, "with_stack=True"),
            Recorded("autograd", "operators with a sequence number", sequences, "ProfilerActivity.CPU"),
            Recorded("arrows", "arrows that confirm the sequence numbers", arrows.agree, ""),
            Recorded("operators", "operators and annotations", len(ranges), "ProfilerActivity.CPU"),
            Recorded("steps", "steps", _steps(trace), "schedule=.. and profiler.step() after each step"),
        ),
        options=tuple(f"{name}=True" for name in _OPTIONS if source.events.facts.get(name) in (1, True)),
        method=OUR_METHOD,
        ranks=rank_texts(trace),
        events=None,
        recorder=(),
        overhead_ns=None,
        warnings=_contradictions(arrows),
    )


def _contradictions(arrows: FlowAgreement) -> tuple[str, ...]:
    if arrows.agree == arrows.arrows:
        return ()
    return (
        f"{arrows.arrows - arrows.agree:,} of {arrows.arrows:,} arrows from forward to backward begin at "
        "another operator than the sequence numbers name: lines of backward may be wrong",
    )


def _steps(trace: Trace) -> int:
    ranges = trace.ranges
    names = np.array([bool(PROFILER_STEP.match(name)) for name in ranges.names] or [False], dtype=bool)
    return int(names[ranges.name].sum())


def _chrome_gpu(device: dict[str, Any]) -> Gpu:
    major, minor = device.get("computeMajor"), device.get("computeMinor", 0)
    return Gpu(
        name=str(device.get("name", "")),
        compute=f"{major}.{minor}" if major else "",
        multiprocessors=whole(device.get("numSms"), 0),
        memory_bytes=whole(device.get("totalGlobalMem"), 0),
    )
