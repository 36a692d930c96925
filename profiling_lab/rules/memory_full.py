# SPDX-License-Identifier: Apache-2.0
"""Is the memory of a GPU nearly full? Then torch's allocator begins to free and ask again, which waits for
the GPU, and the next larger batch does not fit.

Counted is what each process held at its peak, of all that the device has. What was allocated before the
recording is not in it, so the truth may be worse. Memory costs no time by itself: the cost is that of the
allocations and releases, during which the host stands still.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory import memory_peaks
from profiling_lab.rules.costs import held
from profiling_lab.rules.finding import Abstain, Threshold, Verdict, percent, where
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View
from profiling_lab.trace.cuda_calls import CudaCall

FULL = Threshold("full", "the peak", 0.9, "of the GPU's memory, more than", "TensorBoard's profiler plugin")
ALLOCATES = (CudaCall.DEVICE_MEMORY, CudaCall.POOL_MEMORY)
REMEDY = "smaller batches, activation checkpointing, a sharded optimizer (FSDP), or lower precision"


def check(view: View) -> Verdict:
    peaks = memory_peaks(view.trace)
    if peaks is None:
        return Abstain(
            "the file does not note allocations",
            "`nsys profile --cuda-memory-usage=true`, or torch.profiler with profile_memory=True",
        )
    if peaks and not any(peak.total_bytes for peak in peaks):
        return Abstain(
            "the file does not say how much memory its GPUs have",
            "an export of nsys from mid 2021 on, or torch.profiler from 1.9 on",
        )
    findings = []
    for peak in peaks:
        if not peak.total_bytes or peak.peak_bytes <= view[FULL] * peak.total_bytes:
            continue
        rows = np.flatnonzero(view.calls_of(*ALLOCATES) & (view.calls.process == peak.process))
        rows = rows[np.argsort(view.calls.start_ns[rows], kind="stable")]
        stood = held(view, rows)
        last = np.searchsorted(view.calls.start_ns[rows], peak.at_ns, "right") - 1
        place = view.place(int(view.call_place[rows[last]])) if last >= 0 else None
        # Where the calls are not in the file, what ran at the peak has to show when it was.
        at = np.argmin(np.abs(view.operations.start_ns.astype(np.float64) - peak.at_ns))
        findings.append(
            view.finding(
                f"device {peak.device}{view.of_process(peak.process)} held {peak.peak_bytes:,} bytes at its "
                f"peak, {percent(peak.peak_bytes / peak.total_bytes)} of all"
                f"{where(place, '; this line allocated last')}",
                cost_ns=stood.total_ns,
                cost_of="host held in allocations and releases",
                place=place,
                table="calls" if len(rows) else "operations",
                rows=stood.calls if len(rows) else np.array([at]),
                weight=stood.each_ns if len(rows) else np.ones(1, dtype=np.int64),
                remedy=REMEDY,
            )
        )
    return findings


RULE = Rule("memory_full", "Is the memory of a GPU nearly full?", (FULL,), check, __doc__ or "")
