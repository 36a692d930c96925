# SPDX-License-Identifier: Apache-2.0
"""Is the memory of a GPU nearly full? Then torch's caching allocator frees blocks and allocates again, which
synchronises with the GPU, and a larger batch does not fit.

The rule compares the peak memory of each process with the memory of the device. Memory that was allocated
before the recording is not included, so the real peak may be higher. Memory itself costs no time. The cost
is that of the allocations and frees, during which the host is blocked.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.peaks import memory_peaks
from profiling_lab.rules.costs import host_blocked
from profiling_lab.rules.finding import Abstain, RuleResult, Threshold, percent, where
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View
from profiling_lab.trace.cuda_calls import CudaCall

FULL = Threshold("full", "the peak", 0.9, "of the GPU's memory, more than", "TensorBoard's profiler plugin")
ALLOCATES = (CudaCall.DEVICE_MEMORY, CudaCall.POOL_MEMORY)
REMEDY = "smaller batches, activation checkpointing, a sharded optimizer (FSDP), or lower precision"


def check(view: View) -> RuleResult:
    peaks = memory_peaks(view.trace)
    if peaks is None:
        return Abstain(
            "the trace has no allocations",
            "`profiling-lab record --memory`, `nsys profile --cuda-memory-usage=true`, or torch.profiler "
            "with profile_memory=True",
        )
    if peaks and not any(peak.total_bytes for peak in peaks):
        return Abstain(
            "the trace does not say how much memory its GPUs have",
            "an export of nsys 2021.2 or later, or torch.profiler of torch 1.9 or later",
        )
    findings = []
    for peak in peaks:
        if not peak.total_bytes or peak.peak_bytes <= view[FULL] * peak.total_bytes:
            continue
        rows = np.flatnonzero(view.calls_of(*ALLOCATES) & (view.calls.process == peak.process))
        rows = rows[np.argsort(view.calls.start_ns[rows], kind="stable")]
        blocked = host_blocked(view, rows)
        last = np.searchsorted(view.calls.start_ns[rows], peak.at_ns, "right") - 1
        place = view.place(int(view.call_place[rows[last]])) if last >= 0 else None
        # Without calls in the trace, the operation that ran at the peak is the evidence.
        findings.append(
            view.finding(
                f"device {peak.device}{view.of_process(peak.process)} held {peak.peak_bytes:,} bytes at its "
                f"peak, {percent(peak.peak_bytes / peak.total_bytes)} of all"
                f"{where(place, '; this line allocated last')}",
                cost_ns=blocked.total_ns,
                cost_of="host blocked in allocations and frees",
                place=place,
                table="calls" if len(rows) else "operations",
                rows=blocked.calls if len(rows) else view.near(peak.at_ns),
                weight=blocked.each_ns if len(rows) else np.ones(1, dtype=np.int64),
                remedy=REMEDY,
            )
        )
    return findings


RULE = Rule("memory_full", "Is the memory of a GPU nearly full?", (FULL,), check, __doc__ or "")
