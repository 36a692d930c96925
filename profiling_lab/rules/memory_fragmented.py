# SPDX-License-Identifier: Apache-2.0
"""Is the memory that torch reserved in pieces that are too small? Then an allocation fails, or takes new
memory from the driver, although enough is free.

The rule fires where an allocation failed for which the free parts together were large enough. It also fires
where most of the GPU is reserved and much of that is free, in segments that cannot be given back because
something in them is in use. It looks at the moment at which most was reserved. Memory itself costs no time.
It needs `record --memory`.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.devices import DeviceMemory
from profiling_lab.analysis.memory.pressure import OutOfMemory, out_of_memory, reserved_peak
from profiling_lab.rules.finding import Abstain, Finding, RuleResult, Threshold, percent
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View

FREE = Threshold("free", "free in segments that are in use", 0.25, "of the reserved memory, at least", "ours")
RESERVED = Threshold("reserved", "reserved", 0.5, "of the GPU's memory, at least", "ours: less is no problem")
REMEDY = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; fewer different sizes (pad batches to a few lengths); "
    "allocate what stays before what is temporary"
)


def check(view: View) -> RuleResult:
    if isinstance(view.memories, Abstain):
        return view.memories
    findings = []
    for each in view.memories:
        failed = [oom for oom in out_of_memory(each.replayed) if oom.fits_in_free_parts]
        if failed:
            findings.append(_of_error(view, each, failed[0]))
        elif found := _of_peak(view, each):
            findings.append(found)
    return findings


def _of_error(view: View, each: DeviceMemory, oom: OutOfMemory) -> Finding:
    return _finding(
        view,
        f"device {each.device} ran out of memory for {oom.requested_bytes:,} bytes with "
        f"{oom.cached.free_bytes:,} bytes free, but at most {oom.cached.largest_bytes:,} in one piece",
        each,
        oom.stack,
        oom.time_ns,
    )


def _of_peak(view: View, each: DeviceMemory) -> Finding | None:
    cached = reserved_peak(each.replayed)
    total = each.history.total_bytes
    if not total or not cached.reserved_bytes or cached.reserved_bytes < view[RESERVED] * total:
        return None
    if cached.in_used_segments_bytes < view[FREE] * cached.reserved_bytes:
        return None
    share = percent(cached.in_used_segments_bytes / cached.reserved_bytes)
    event = int(each.replayed.reserved.argmax()) if len(each.history) else 0
    return _finding(
        view,
        f"device {each.device} had {cached.reserved_bytes:,} bytes reserved, {share} free in segments that "
        f"are in use, at most {cached.largest_bytes:,} in one piece",
        each,
        int(each.history.stack[event]) if len(each.history) else 0,
        each.time_of(event),
    )


def _finding(view: View, what: str, each: DeviceMemory, stack: int, time_ns: int) -> Finding:
    return view.finding(
        what,
        cost_ns=0,
        cost_of="memory, not time",
        place=each.place_of_stack(stack).frame,
        rows=view.near(time_ns),
        weight=np.ones(1, dtype=np.int64),
        remedy=REMEDY,
    )


RULE = Rule(
    "memory_fragmented",
    "Is the reserved memory in pieces that are too small?",
    (FREE, RESERVED),
    check,
    __doc__ or "",
    severity_at_least="medium",
)
