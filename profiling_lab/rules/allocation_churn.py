# SPDX-License-Identifier: Apache-2.0
"""Does the program allocate and free GPU memory in every step? cudaMalloc and cudaFree are slow, and cudaFree
synchronises with the GPU. After warm-up, torch's caching allocator needs neither.

The rule counts calls that allocate or free after the first third of the kernels, for memory of the GPU and
for pinned memory. One cause makes many lines allocate: what empty_cache() frees, other lines allocate again,
and near the memory limit the allocator frees its cache whenever it needs a larger block. So all lines are one
finding, at the line that costs most, with what its backward allocates. Calls that use a memory pool
(cudaMallocAsync) are cheap and not counted. The cost is the host time in the calls. The GPU loses time only
if it runs out of queued work meanwhile; `gaps` shows that.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.critical_path.savings import Saving, fewer
from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.backward_calls import places_of
from profiling_lab.rules.costs import host_blocked
from profiling_lab.rules.finding import CALLS, LONGER, WORTH, Abstain, RuleResult, Threshold, ms, percent
from profiling_lab.rules.layout_copies import JOINING
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, unique
from profiling_lab.trace.cuda_calls import CudaCall

WARM_UP = Threshold(
    "warm_up", "warm-up", 1 / 3, "of the kernels", "ours: torch grows its pool in the first steps"
)
MANY = Threshold("many", "calls after warm-up", 4, "at least", "ours: a few blocks grow late in any program")
ENOUGH = Threshold("enough", "kernels needed to tell warm-up from steps", 100, "at least", "ours")
# Allocations from a pool (cudaMallocAsync) are cheap and fine inside a loop.
ALLOCATES = (CudaCall.DEVICE_MEMORY, CudaCall.PINNED_MEMORY)
REMEDY = (
    "allocate once and reuse; in torch, find the tensors whose sizes change, leave the caching allocator on, "
    "drop torch.cuda.empty_cache(), or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)


def check(view: View) -> RuleResult:
    operations, calls = view.operations, view.calls
    if not len(calls):
        return Abstain("no CUDA API call was recorded", CALLS)
    if (kernels := int(view.kernels.sum())) < view[ENOUGH]:
        return Abstain(f"{kernels} kernels are too few to tell warm-up from steady steps", LONGER)
    starts = np.sort(operations.start_ns[view.kernels])
    warm = starts[int(min(view[WARM_UP] * len(starts), len(starts) - 1))]
    kind = 2 * calls.process + view.calls_of(CudaCall.PINNED_MEMORY)
    all_rows = np.flatnonzero(view.calls_of(*ALLOCATES))
    rows = all_rows[calls.start_ns[all_rows] > warm]
    findings = []
    for _, mine in grouped(rows, kind[rows]):
        blocked = host_blocked(view, mine)
        if len(mine) < view[MANY] or blocked.total_ns < view[WORTH] * view.span_ns:
            continue
        place = places_of(view, blocked.calls)
        in_line = np.bincount(place + 1, weights=blocked.each_ns, minlength=2).astype(np.int64)[1:]
        lines, most = np.count_nonzero(in_line), int(in_line.argmax())
        share = f", {percent(in_line[most] / max(blocked.each_ns.sum(), 1))} of the time at this one,"
        where = f" at {lines} lines{share}" if lines > 1 else ""
        findings.append(
            view.finding(
                what=f"{len(mine)} allocations and frees{where} after warm-up took {ms(blocked.total_ns)}",
                cost_ns=blocked.total_ns,
                cost_of="host blocked in the calls",
                place=view.place(most if lines else -1),
                table="calls",
                rows=blocked.calls,
                weight=blocked.each_ns,
                remedy=REMEDY,
                saving=Saving(calls=all_rows[kind[all_rows] == kind[mine[0]]])
                | fewer(_growing(view, in_line)),
            )
        )
    return findings


def _growing(view: View, blocked_ns: I64) -> I64:
    """The copies of results that grow, if their lines allocate and free most: for a new size torch
    gives back what it holds. Room for all of it saves both. blocked_ns: by line number.
    """
    copies = np.flatnonzero(view.kernels_named(JOINING) & (view.operation_place >= 0))
    place = view.operation_place[copies]
    frees = view.calls_of(*ALLOCATES) & view.called("Free")
    freeing = np.bincount(view.call_place[frees] + 1, minlength=view.lines + 1)[1:] > 0
    mine = [line for line in unique(place).tolist() if line < len(blocked_ns) and freeing[line]]
    most = 2 * int(blocked_ns[mine].sum()) > int(blocked_ns.sum())
    return copies[np.isin(place, mine if most else [])]


RULE = Rule(
    "allocation_churn",
    "Does the program allocate GPU memory after warm-up?",
    (WARM_UP, MANY, ENOUGH, WORTH),
    check,
    __doc__ or "",
    time=Time.IDLE,
    all_lines=True,
)
