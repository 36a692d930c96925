# SPDX-License-Identifier: Apache-2.0
"""Does the program allocate and free GPU memory again and again? cudaMalloc and cudaFree are slow, and
cudaFree waits for the GPU; after warm-up torch's allocator needs neither.

Counted are calls that allocate or free after the first third of the kernels, by line. Those of a memory pool
(cudaMallocAsync) are cheap and left out. The cost is the host's time in the calls; the GPU feels it only
where its queue runs dry meanwhile, which `gaps` shows.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.costs import held
from profiling_lab.rules.finding import CALLS, LONGER, WORTH, Abstain, Threshold, Verdict, ms
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.cuda_calls import CudaCall

WARM_UP = Threshold(
    "warm_up", "warm-up", 1 / 3, "of the kernels", "ours: torch grows its pool in the first steps"
)
MANY = Threshold("many", "calls after warm-up", 4, "at least", "ours: a few blocks grow late in any program")
ENOUGH = Threshold("enough", "kernels to tell warm-up from steps", 100, "at least", "ours")
# Allocations from a pool (cudaMallocAsync) are cheap and belong into a loop.
ALLOCATES = (CudaCall.DEVICE_MEMORY, CudaCall.PINNED_MEMORY)
REMEDY = (
    "allocate once and reuse; in torch, find what asks for ever new sizes, drop torch.cuda.empty_cache(), "
    "or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)


def check(view: View) -> Verdict:
    operations, calls = view.operations, view.calls
    allocates = view.calls_of(*ALLOCATES)
    if not len(calls):
        return Abstain("no API call was recorded", CALLS)
    if view.kernels.sum() < view[ENOUGH]:
        return Abstain(f"{int(view.kernels.sum())} kernels are too few to tell warm-up from steps", LONGER)
    starts = np.sort(operations.start_ns[view.kernels])
    warm = starts[int(min(view[WARM_UP] * len(starts), len(starts) - 1))]
    rows = np.flatnonzero(allocates & (calls.start_ns > warm))
    findings = []
    for number, mine in grouped(rows, view.call_place[rows]):
        stood = held(view, mine)
        if len(mine) < view[MANY] or stood.total_ns < view[WORTH] * view.span_ns:
            continue
        findings.append(
            view.finding(
                what=f"{len(mine)} allocations and releases after warm-up took {ms(stood.total_ns)}",
                cost_ns=stood.total_ns,
                cost_of="host held in the calls",
                place=view.place(number),
                table="calls",
                rows=stood.calls,
                weight=stood.each_ns,
                remedy=REMEDY,
            )
        )
    return findings


RULE = Rule(
    "allocation_churn",
    "Does the program allocate GPU memory after warm-up?",
    (WARM_UP, MANY, ENOUGH, WORTH),
    check,
    __doc__ or "",
    time=Time.IDLE,
)
