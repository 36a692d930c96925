# SPDX-License-Identifier: Apache-2.0
"""Which asynchronous copies use pageable host memory? The driver stages those, and the host waits for that.

The rule counts asynchronous copies with pageable memory on either side, but not managed memory. The cost is
the time in which only these copies run, and the GPU's idle time that the calls cause. The wait for earlier
GPU work is not counted. With pinned memory the copy is faster, and the call returns at once. A single number,
as `torch.tensor(2.0, device="cuda")` copies it, is not worth pinning: it need not be copied at all.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.copy_cost import COST_OF, copy_cost, pinned_saving
from profiling_lab.rules.finding import MEMORY_KINDS, WORTH, Abstain, RuleResult, ms
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64, MemoryKind

NUMBER_BYTES = 16
"""the largest number, a complex128"""
OF_NUMBERS = "compute with Python's number itself, fill a tensor on the GPU, or make it once before the loop"
REMEDY = (
    "pin the host memory (tensor.pin_memory(), DataLoader(pin_memory=True)), and copy with non_blocking=True"
)


def check(view: View) -> RuleResult:
    operations = view.operations
    # Of a copy between host and GPU the kind of the host's memory is needed.
    known = (operations.source_memory != MemoryKind.UNKNOWN) & (
        operations.target_memory != MemoryKind.UNKNOWN
    )
    if not view.copies.any():
        return ()
    if not (view.copies & known).any():
        return Abstain("the trace does not record the memory kinds of its copies", MEMORY_KINDS)
    pageable = (operations.source_memory == MemoryKind.PAGEABLE) | (
        operations.target_memory == MemoryKind.PAGEABLE
    )
    rows = np.flatnonzero(view.copies & pageable & view.launched_by("Async"))
    to_device, findings = view.named("memcpy HtoD"), []
    for number, mine in grouped(rows, view.operation_place[rows]):
        cost = copy_cost(view, mine)
        if cost.total_ns < view[WORTH] * view.span_ns:
            continue
        size_bytes = int(operations.size_bytes[mine].sum())
        numbers = to_device[mine].all() and operations.size_bytes[mine].max() <= NUMBER_BYTES
        findings.append(
            view.finding(
                what=f"{len(mine)} asynchronous copies of pageable memory, {size_bytes:,} bytes, took "
                f"{ms(int(operations.duration_ns[mine].sum()))}: {cost}",
                cost_ns=cost.total_ns,
                cost_of=COST_OF,
                place=view.place(number),
                rows=mine,
                weight=cost.each_ns,
                remedy=OF_NUMBERS if numbers else REMEDY,
                saving=pinned_saving(view, np.append(mine, _brought_back(view, mine, rows))),
            )
        )
    return findings or view.too_few_calls(view.copies, "copies") or ()


def _brought_back(view: View, mine: I64, rows: I64) -> I64:
    """The copies to the device at other lines that bring back what these copied to the host, as saved tensors
    are: memory that these lines pin is pinned there, too. All copies of such a line have sizes of these.
    """
    size_bytes, place = view.operations.size_bytes, view.operation_place
    sent = mine[view.named("memcpy DtoH")[mine]]
    other = rows[view.named("memcpy HtoD")[rows] & (place[rows] != place[mine[0]])]
    known = np.isin(size_bytes[other], size_bytes[sent])
    back = ~np.isin(place[other], place[other[~known]])
    return np.asarray(other[back], dtype=np.int64)


RULE = Rule(
    "pageable_copy",
    "Which asynchronous copies use pageable host memory?",
    (WORTH,),
    check,
    __doc__ or "",
    time=Time.BUSY,
    of_host=True,
)
