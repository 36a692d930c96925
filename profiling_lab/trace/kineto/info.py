# SPDX-License-Identifier: Apache-2.0
"""The properties of a torch.profiler file, and which options record what is missing."""

from __future__ import annotations

import numpy as np

from profiling_lab.trace.columns import NO_SEQUENCE, OperationKind
from profiling_lab.trace.facts import OUR_METHOD, Recorded, TraceInfo, utc, whole_number
from profiling_lab.trace.kineto.devices import gpu_of
from profiling_lab.trace.kineto.events import ChromeEvents
from profiling_lab.trace.kineto.flows import FlowAgreement, flow_agreement
from profiling_lab.trace.platform import ROCM_METHOD, is_rocm
from profiling_lab.trace.source import Tables
from profiling_lab.trace.step_methods import PROFILER_STEP

_OPTIONS = ("record_shapes", "with_stack", "profile_memory", "with_modules", "with_flops")
_SYNCS = "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)"
PLAUSIBLE_EPOCH_NS = 10**18  # September 2001: an earlier time is not a date but a monotonic clock


def kineto_info(events: ChromeEvents, whole: Tables) -> TraceInfo:
    operations, ranges, stacks = whole.operations, whole.ranges, whole.stacks_found
    kinds = [int((operations.kind == kind).sum()) for kind in OperationKind]
    all_times = [t for t in (operations.start_ns, operations.end_ns, whole.calls.start_ns) if len(t)]
    began = min((int(t.min()) for t in all_times), default=0)
    sequences = int((ranges.sequence != NO_SEQUENCE).sum())
    arrows = flow_agreement(events)
    return TraceInfo(
        path=str(whole.path),
        file_bytes=whole.path.stat().st_size,
        product="torch.profiler",
        schema=str(whole_number(events.facts.get("schemaVersion"), 0) or ""),
        started_utc=utc(began) if began > PLAUSIBLE_EPOCH_NS else "",
        duration_ns=max(int(t.max()) for t in all_times) - began if all_times else None,
        gpus=tuple(gpu_of(device) for device in events.devices),
        driver="",
        processes=tuple(f"pid {pid}" for pid in whole.pids),
        recorded=(
            Recorded("kernels", "kernels", kinds[OperationKind.KERNEL], "ProfilerActivity.CUDA"),
            Recorded("copies", "copies", kinds[OperationKind.COPY], ""),
            Recorded("sets", "memsets", kinds[OperationKind.SET], ""),
            Recorded("syncs", "synchronizations", len(events["syncs"]["thread"]), _SYNCS),
            Recorded("calls", "CUDA API calls", len(whole.calls), "ProfilerActivity.CUDA"),
            Recorded("python_stacks", "API calls with a Python stack", stacks.recorded, "with_stack=True"),
            Recorded("autograd", "operators with a sequence number", sequences, "ProfilerActivity.CPU"),
            Recorded("arrows", "arrows that confirm the sequence numbers", arrows.agree, ""),
            Recorded("operators", "operators and annotations", len(ranges), "ProfilerActivity.CPU"),
            Recorded("steps", "steps", _steps(whole), "schedule=.. and profiler.step() after each step"),
        ),
        options=tuple(f"{name}=True" for name in _OPTIONS if events.facts.get(name) in (1, True)),
        method=ROCM_METHOD if is_rocm(whole) else OUR_METHOD,
        ranks=(),
        events=None,
        recorder=(),
        overhead_ns=None,
        warnings=(*((events.cut,) if events.cut else ()), *_contradictions(arrows)),
    )


def _contradictions(arrows: FlowAgreement) -> tuple[str, ...]:
    if arrows.agree == arrows.arrows:
        return ()
    return (
        f"{arrows.arrows - arrows.agree:,} of {arrows.arrows:,} arrows from forward to backward begin at "
        "another operator than the sequence numbers say: lines of backward may be wrong",
    )


def _steps(whole: Tables) -> int:
    ranges = whole.ranges
    names = np.array([bool(PROFILER_STEP.match(name)) for name in ranges.names] or [False], dtype=bool)
    return int(names[ranges.name].sum())
