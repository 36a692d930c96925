# SPDX-License-Identifier: Apache-2.0
"""Which copies were meant to be asynchronous (non_blocking=True), but held the host because the memory is
pageable? Nothing waits for such a copy afterwards, so the program did not mean to wait.

Looks at asynchronous copies to the GPU from pageable memory whose call returned only after the copy had begun
and lasted as long as half of it, and whose thread does not synchronise next. Copies up to 64 KB are staged at
once and left out. The cost is that of `pageable_copy`, which lists all such copies, meant to be asynchronous
or not.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.copy_cost import COST_OF, copy_cost
from profiling_lab.rules.costs import held
from profiling_lab.rules.finding import MEMORY_KINDS, WORTH, Abstain, Threshold, Verdict, ms
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import MemoryKind
from profiling_lab.trace.cuda_calls import SYNCS

SMALL = Threshold(
    "small", "copies that return once staged", 65536, "bytes, at most", "nsys: its rule excludes them"
)
HELD = Threshold(
    "held", "the call lasts", 0.5, "of the copy, at least", "ours: a call that only queues takes 3-7 µs"
)
REMEDY = "non_blocking=True does nothing without pinned memory: pin_memory() the tensor, or the DataLoader's"


def check(view: View) -> Verdict:
    operations, call = view.operations, view.attribution.call
    to_device = view.named("memcpy HtoD")
    if not to_device.any():
        return ()
    if (operations.source_memory[to_device] == MemoryKind.UNKNOWN).all():
        return Abstain("the file does not say which memory its copies touch", MEMORY_KINDS)
    pageable = to_device & (operations.source_memory == MemoryKind.PAGEABLE)
    large = operations.size_bytes > view[SMALL]
    rows = np.flatnonzero(pageable & large & view.launched_by("Async"))
    after = view.next_call[call[rows]]
    waits_after = np.append(view.calls_of(*SYNCS), False)[after]
    call_ns = view.call_ns(rows)
    until_copy = view.calls.end_ns[call[rows]] > operations.start_ns[rows]
    stood = until_copy & (call_ns >= view[HELD] * operations.duration_ns[rows]) & ~waits_after
    rows = rows[stood]
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        cost = copy_cost(view, mine)
        if cost.total_ns < view[WORTH] * view.span_ns:
            continue
        findings.append(
            view.finding(
                what=f"{len(mine)} copies to the GPU that nothing waits for held the host for "
                f"{ms(held(view, call[mine]).total_ns)}, because their memory is pageable: {cost}",
                cost_ns=cost.total_ns,
                cost_of=COST_OF,
                place=view.place(number),
                rows=mine,
                weight=cost.each_ns,
                remedy=REMEDY,
                confidence="medium",
            )
        )
    return findings or view.too_few_calls(to_device, "copies to the GPU") or ()


RULE = Rule(
    "blocked_copy",
    "Which copies meant to be asynchronous held the host?",
    (SMALL, HELD, WORTH),
    check,
    __doc__ or "",
    time=Time.BUSY,
    generic=True,
)
