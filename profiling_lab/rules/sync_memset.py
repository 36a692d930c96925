# SPDX-License-Identifier: Apache-2.0
"""Which memory sets are synchronous calls on pinned or managed memory? Only there does the host wait.

A set of device memory is asynchronous to the host whatever the call's name. The cost is what the
GPU loses: idle time that the calls cause, and time in which only the sets run.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.finding import MEMORY_KINDS, WORTH, Abstain, Verdict
from profiling_lab.rules.held_host import held_by
from profiling_lab.rules.rule import Rule, Time
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
    worth_ns = view[WORTH] * view.span_ns
    findings = held_by(
        view,
        rows,
        worth_ns,
        "synchronous sets of pinned or managed memory",
        REMEDY,
    )
    return findings or view.too_few_calls(sets, "memory sets") or ()


RULE = Rule(
    "sync_memset",
    "Which memory sets are synchronous on pinned or managed memory?",
    (WORTH,),
    check,
    __doc__ or "",
    time=Time.IDLE,
)
