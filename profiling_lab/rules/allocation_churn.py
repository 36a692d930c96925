# SPDX-License-Identifier: Apache-2.0
"""Does the program allocate and free GPU memory again and again? cudaMalloc and cudaFree are slow, and
cudaFree waits for the GPU; after warm-up torch's allocator needs neither.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.rule import WORTH, Abstain, Finding, Rule, Threshold, Verdict, ms
from profiling_lab.rules.view import View, grouped

WARM_UP = Threshold("warm-up", 1 / 3, "of the kernels", "ours: torch grows its pool in the first steps")
MANY = Threshold("calls after warm-up", 4, "at least", "ours: a few blocks grow late in any program")
ENOUGH = Threshold("kernels to tell warm-up from steps", 100, "at least", "ours")
# Allocations from a pool (cudaMallocAsync) are cheap and belong into a loop.
CALLS = r"^(cuda(Malloc|Free|HostAlloc)|cuMem(Alloc|Free|HostAlloc|Create|Map))(?!.*Async)"
REMEDY = (
    "allocate once and reuse; in torch, find what asks for ever new sizes, drop torch.cuda.empty_cache(), "
    "or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)


def check(view: View) -> Verdict:
    operations, calls = view.operations, view.calls
    allocates = view.called(CALLS)
    if not len(calls):
        return Abstain("no API call was recorded")
    if view.kernels.sum() < ENOUGH.value:
        return Abstain(f"{int(view.kernels.sum())} kernels are too few to tell warm-up from steps")
    starts = np.sort(operations.start_ns[view.kernels])
    warm = starts[int(WARM_UP.value * len(starts))]
    rows = np.flatnonzero(allocates & (calls.start_ns > warm))
    findings = []
    for number, mine in grouped(rows, view.call_place[rows]):
        held_ns = calls.end_ns[mine] - calls.start_ns[mine]
        if len(mine) < MANY.value or held_ns.sum() < WORTH.value * view.span_ns:
            continue
        findings.append(
            Finding(
                what=f"{len(mine)} allocations and releases after warm-up took {ms(int(held_ns.sum()))}",
                cost_ns=int(held_ns.sum()),
                cost_of="host held in the calls",
                place=view.place(number),
                evidence=view.evidence("calls", mine, held_ns),
                events=len(mine),
                remedy=REMEDY,
            )
        )
    return findings


RULE = Rule(
    "allocation_churn",
    "Does the program allocate GPU memory after warm-up?",
    (WARM_UP, MANY, ENOUGH, WORTH),
    check,
)
