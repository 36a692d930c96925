# SPDX-License-Identifier: Apache-2.0
"""Do workspaces of cuBLAS take much of the peak? torch allocates one for each stream and thread that
multiplies matrices, and keeps it.

The rule counts blocks of the workspaces' sizes that are never freed. On Hopper each has 32 MiB. It needs
`record --memory`, and memory itself costs no time.
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.memory.kinds import Kind
from profiling_lab.rules.finding import Abstain, RuleResult, Threshold, percent
from profiling_lab.rules.rule import Rule
from profiling_lab.rules.view import View

MUCH = Threshold("much", "workspaces", 0.2, "of the peak, at least", "ours")
REMEDY = (
    "fewer streams and threads that multiply matrices, or CUBLAS_WORKSPACE_CONFIG=:4096:2 for smaller "
    "workspaces; torch._C._cuda_clearCublasWorkspaces() frees them before a part that needs the memory"
)


def check(view: View) -> RuleResult:
    if isinstance(view.memories, Abstain):
        return view.memories
    findings = []
    for each in view.memories:
        event = each.replayed.peak_event
        alive = each.allocations.alive_at(event)
        rows = alive[each.kinds[alive] == Kind.WORKSPACE]
        held, peak = int(each.allocations.size[rows].sum()), each.replayed.peak_bytes
        if not len(rows) or held < view[MUCH] * peak:
            continue
        largest = int(rows[each.allocations.size[rows].argmax()])
        findings.append(
            view.finding(
                f"workspaces of cuBLAS ({len(rows)} of them) hold {held:,} bytes, {percent(held / peak)} of "
                f"the peak of device {each.device}",
                cost_ns=0,
                cost_of="memory, not time",
                place=each.place(largest).frame,
                rows=view.near(each.time_of(event)),
                weight=np.ones(1, dtype=np.int64),
                remedy=REMEDY,
                confidence="medium",
            )
        )
    return findings


RULE = Rule(
    "memory_workspace", "Do workspaces of cuBLAS take much of the peak?", (MUCH,), check, __doc__ or ""
)
