# SPDX-License-Identifier: Apache-2.0
"""Which memory sets are synchronous calls on pinned or managed memory? Only there does the host wait.

A set of device memory is asynchronous to the host whatever the call's name. The cost is the host's time in
the calls.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.places import grouped
from profiling_lab.rules.rule import MEMORY_KINDS, WORTH, Abstain, Rule, Verdict, ms
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import MemoryKind, OperationKind

HOST_VISIBLE = (MemoryKind.PINNED, MemoryKind.MANAGED, MemoryKind.MANAGED_STATIC)
REMEDY = "use cudaMemsetAsync on a stream"


def check(view: View) -> Verdict:
    operations = view.operations
    sets = operations.kind == OperationKind.SET
    if not sets.any():
        return ()
    synchronous = sets & view.launched_by(r"^(cuda|cu)Memset(?!.*Async)")
    if (operations.target_memory[synchronous] == MemoryKind.UNKNOWN).any():
        return Abstain("the file does not say which memory its synchronous sets touch", MEMORY_KINDS)
    rows = np.flatnonzero(synchronous & np.isin(operations.target_memory, HOST_VISIBLE))
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        held_ns = view.call_ns(mine)
        if held_ns.sum() < view[WORTH] * view.span_ns:
            continue
        findings.append(
            view.finding(
                what=f"{len(mine)} synchronous sets of pinned or managed memory held the host for "
                f"{ms(int(held_ns.sum()))}",
                cost_ns=int(held_ns.sum()),
                cost_of="host held in the set calls",
                place=view.place(number),
                rows=mine,
                weight=held_ns,
                remedy=REMEDY,
            )
        )
    return findings or view.too_few_calls(sets, "memory sets") or ()


RULE = Rule(
    "sync_memset",
    "Which memory sets are synchronous on pinned or managed memory?",
    (WORTH,),
    check,
    __doc__ or "",
)
