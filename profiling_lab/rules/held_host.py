# SPDX-License-Identifier: Apache-2.0
"""Calls that hold the host while the GPU does what they ask for, by line: the findings of two rules."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.stats import grouped
from profiling_lab.rules.finding import Finding, ms
from profiling_lab.rules.view import View


def held_by(
    view: View, rows: npt.NDArray[np.intp], worth_ns: float, what: str, cost_of: str, remedy: str
) -> list[Finding]:
    """A finding per line whose calls for the operations `rows` held the host for `worth_ns` or more."""
    findings = []
    for number, mine in grouped(rows, view.operation_place[rows]):
        held_ns = view.call_ns(mine)
        if held_ns.sum() < worth_ns:
            continue
        findings.append(
            view.finding(
                what=f"{len(mine)} {what} held the host for {ms(int(held_ns.sum()))}",
                cost_ns=int(held_ns.sum()),
                cost_of=cost_of,
                place=view.place(number),
                rows=mine,
                weight=held_ns,
                remedy=remedy,
            )
        )
    return findings
