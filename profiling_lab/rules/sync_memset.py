# SPDX-License-Identifier: Apache-2.0
"""Which memsets are synchronous calls on pinned or managed memory? Only those block the host.

A memset of device memory is asynchronous whatever the name of the call. The cost is what the GPU loses: the
idle time that the calls cause, and the time in which only the memsets run.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.rules.blocking_calls import blocking_calls
from profiling_lab.rules.finding import MEMORY_KINDS, WORTH, Abstain, RuleResult
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import MemoryKind, OperationKind

HOST_VISIBLE = (MemoryKind.PINNED, MemoryKind.MANAGED, MemoryKind.MANAGED_STATIC)
REMEDY = "use cudaMemsetAsync on a stream"


def check(view: View) -> RuleResult:
    operations = view.operations
    sets = operations.kind == OperationKind.SET
    if not sets.any():
        return ()
    synchronous = sets & view.launched_by(r"^(cuda|cu)Memset(?!.*Async)")
    if (operations.target_memory[synchronous] == MemoryKind.UNKNOWN).any():
        return Abstain("the trace does not record the memory kinds of its synchronous memsets", MEMORY_KINDS)
    rows = np.flatnonzero(synchronous & np.isin(operations.target_memory, HOST_VISIBLE))
    worth_ns = view[WORTH] * view.span_ns
    findings = blocking_calls(
        view,
        rows,
        worth_ns,
        "synchronous memsets of pinned or managed memory",
        REMEDY,
    )
    return findings or view.too_few_calls(sets, "memsets") or ()


RULE = Rule(
    "sync_memset",
    "Which memsets are synchronous on pinned or managed memory?",
    (WORTH,),
    check,
    __doc__ or "",
    time=Time.IDLE,
    of_host=True,
)
