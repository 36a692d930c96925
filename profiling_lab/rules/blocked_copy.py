# SPDX-License-Identifier: Apache-2.0
"""Which copies were meant to be asynchronous (non_blocking=True), but held the host because the memory is
pageable? Nothing waits for such a copy afterwards, so the program did not mean to wait.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.rule import WORTH, Abstain, Finding, Rule, Threshold, Verdict, ms
from profiling_lab.rules.view import HOST_WAITS, View, grouped
from profiling_lab.trace.columns import MemoryKind

SMALL = Threshold("copies that return once staged", 65536, "bytes, at most", "nsys: its rule excludes them")
HELD = Threshold("the call lasts", 0.5, "of the copy, at least", "ours: a call that only queues takes 3-7 µs")
REMEDY = "non_blocking=True does nothing without pinned memory: pin_memory() the tensor, or the DataLoader's"


def check(view: View) -> Verdict:
    operations, call = view.operations, view.attribution.call
    to_device = view.named("memcpy HtoD")
    if not to_device.any():
        return ()
    if (operations.source_memory[to_device] == MemoryKind.UNKNOWN).all():
        return Abstain("the file does not say which memory its copies touch")
    pageable = to_device & (operations.source_memory == MemoryKind.PAGEABLE)
    large = operations.size_bytes > SMALL.value
    rows = np.flatnonzero(pageable & large & view.launched_by("Async"))
    after = view.next_call[call[rows]]
    waits_after = np.append(view.called(HOST_WAITS), False)[after]
    call_ns = view.call_ns(rows)
    until_copy = view.calls.end_ns[call[rows]] > operations.start_ns[rows]
    held = until_copy & (call_ns >= HELD.value * operations.duration_ns[rows]) & ~waits_after
    rows, call_ns = rows[held], call_ns[held]
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        lasted = view.call_ns(mine)
        if lasted.sum() < WORTH.value * view.span_ns:
            continue
        findings.append(
            Finding(
                what=f"{len(mine)} copies to the GPU that nothing waits for held the host for "
                f"{ms(int(lasted.sum()))}, because their memory is pageable",
                cost_ns=int(lasted.sum()),
                cost_of="host held in the copy calls",
                place=view.place(number),
                evidence=view.evidence("operations", mine, lasted),
                events=len(mine),
                remedy=REMEDY,
            )
        )
    return findings or view.too_few_calls(to_device, "copies to the GPU") or ()


RULE = Rule(
    "blocked_copy", "Which copies meant to be asynchronous held the host?", (SMALL, HELD, WORTH), check
)
