# SPDX-License-Identifier: Apache-2.0
"""Calls that hold the host while the GPU does what they ask for, by line: the findings of two rules."""

from __future__ import annotations

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.copy_cost import COST_OF, copy_cost
from profiling_lab.rules.costs import held
from profiling_lab.rules.finding import Finding, ms
from profiling_lab.rules.view import View
from profiling_lab.trace.columns import I64


def held_by(view: View, rows: I64, worth_ns: float, what: str, remedy: str) -> list[Finding]:
    """A finding per line whose calls for the operations `rows` cost the GPU `worth_ns` or more."""
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        cost = copy_cost(view, mine)
        if cost.total_ns < worth_ns:
            continue
        stood_ns = held(view, view.attribution.call[mine]).total_ns
        findings.append(
            view.finding(
                what=f"{len(mine)} {what} held the host for {ms(stood_ns)}: {cost}",
                cost_ns=cost.total_ns,
                cost_of=COST_OF,
                place=view.place(number),
                rows=mine,
                weight=cost.each_ns,
                remedy=remedy,
            )
        )
    return findings
