# SPDX-License-Identifier: Apache-2.0
"""Synchronous copies and memsets, whose calls block the host: the findings of two rules, by line."""

from __future__ import annotations

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.copy_cost import COST_OF, copy_cost, pinned_saving
from profiling_lab.rules.costs import host_blocked
from profiling_lab.rules.finding import Finding, ms
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64


def blocking_calls(view: View, rows: I64, worth_ns: float, what: str, remedy: str) -> list[Finding]:
    """One finding per line whose calls for the operations `rows` cost the GPU at least `worth_ns`."""
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        cost = copy_cost(view, mine)
        if cost.total_ns < worth_ns:
            continue
        blocked_ns = host_blocked(view, view.attribution.call[mine]).total_ns
        findings.append(
            view.finding(
                what=f"{len(mine)} {what} blocked the host for {ms(blocked_ns)}: {cost}",
                cost_ns=cost.total_ns,
                cost_of=COST_OF,
                place=view.place(number),
                rows=mine,
                weight=cost.each_ns,
                remedy=remedy,
                saving=pinned_saving(view, mine),
            )
        )
    return findings
