# SPDX-License-Identifier: Apache-2.0
"""Which copies were meant to be asynchronous (non_blocking=True), but blocked the host because the host
memory is pageable? Nothing waits for such a copy afterwards, so the program did not intend to wait.

The rule looks at asynchronous copies from pageable host memory to the GPU. Such a copy counts if its call
returned after the copy had begun, if the call lasted at least half as long as the copy, and if its thread
does not synchronise next. The driver stages copies of up to 64 KB, and their calls return at once: they are
not counted. `pageable_copy` lists all copies of pageable memory. The cost is computed in the same way
there.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.copy_cost import COST_OF, copy_cost, pinned_saving
from profiling_lab.rules.costs import host_blocked
from profiling_lab.rules.finding import MEMORY_KINDS, WORTH, Abstain, RuleResult, Threshold, ms
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import MemoryKind
from profiling_lab.trace.cuda_calls import SYNCS

SMALL = Threshold(
    "small", "copies whose call returns once staged", 65536, "bytes, at most", "nsys excludes them too"
)
HELD = Threshold(
    "held", "the call lasts", 0.5, "of the copy, at least", "ours: a call that only enqueues takes 3-7 µs"
)
REMEDY = "non_blocking=True needs pinned memory: tensor.pin_memory(), or DataLoader(pin_memory=True)"


def check(view: View) -> RuleResult:
    operations, call = view.operations, view.attribution.call
    to_device = view.named("memcpy HtoD")
    if not to_device.any():
        return ()
    if (operations.source_memory[to_device] == MemoryKind.UNKNOWN).all():
        return Abstain("the trace does not record the memory kinds of its copies", MEMORY_KINDS)
    pageable = to_device & (operations.source_memory == MemoryKind.PAGEABLE)
    large = operations.size_bytes > view[SMALL]
    rows = np.flatnonzero(pageable & large & view.launched_by("Async"))
    after = view.next_call[call[rows]]
    waits_after = np.append(view.calls_of(*SYNCS), False)[after]
    call_ns = view.call_ns(rows)
    until_copy = view.calls.end_ns[call[rows]] > operations.start_ns[rows]
    blocked = until_copy & (call_ns >= view[HELD] * operations.duration_ns[rows]) & ~waits_after
    rows = rows[blocked]
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        cost = copy_cost(view, mine)
        if cost.total_ns < view[WORTH] * view.span_ns:
            continue
        findings.append(
            view.finding(
                what=f"{len(mine)} copies to the GPU that nothing waits for blocked the host for "
                f"{ms(host_blocked(view, call[mine]).total_ns)}, because their host memory is pageable: "
                f"{cost}",
                cost_ns=cost.total_ns,
                cost_of=COST_OF,
                place=view.place(number),
                rows=mine,
                weight=cost.each_ns,
                remedy=REMEDY,
                saving=pinned_saving(view, mine),
                confidence="medium",
            )
        )
    return findings or view.too_few_calls(to_device, "copies to the GPU") or ()


RULE = Rule(
    "blocked_copy",
    "Which copies meant to be asynchronous block the host?",
    (SMALL, HELD, WORTH),
    check,
    __doc__ or "",
    time=Time.BUSY,
    of_host=True,
    generic=True,
)
