# SPDX-License-Identifier: Apache-2.0
"""What a comparison says to machines: its verdict as data, and warnings that CI pins to lines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from profiling_lab.analysis.diff.diff import DiffResult
from profiling_lab.analysis.diff.measure import Capture
from profiling_lab.analysis.diff.verdict import LimitResult
from profiling_lab.report import numbers
from profiling_lab.report.annotations import annotation
from profiling_lab.report.diff.memory import memory_data
from profiling_lab.report.diff.text import interval_text, limit_line, signed_time, verdict

WARNING_FRAC = 0.005
"""of the step: a line that grew by less gets no warning, as among many lines some grow by chance"""


def summary(result: DiffResult) -> dict[str, Any]:
    """The verdict for machines."""
    return {
        "verdict": result.state if result.comparable else "not comparable",
        "sentence": verdict(result),
        "common_frac": result.common_frac,
        "change_ns": result.change_ns,
        "interval": asdict(result.interval) if result.interval else None,
        "before": asdict(result.before),
        "after": asdict(result.after),
        "checks": [asdict(check) for check in result.checks],
        "gate": asdict(result.gate) if result.gate else None,
        "budgets": [asdict(budget) for budget in result.budgets],
        "memory": memory_data(result.memory) if result.memory else None,
        "steps": {
            "before": [_steps_data(capture) for capture in result.captures_before],
            "after": [_steps_data(capture) for capture in result.captures_after],
        },
    }


def _steps_data(capture: Capture) -> dict[str, Any]:
    return {"sign": capture.origin.sign, "step_ns": capture.step_ns.tolist()}


def workflow_warnings(result: DiffResult) -> tuple[str, ...]:
    """Workflow commands that pin a warning to each line that got slower or is over its budget, and say which
    limits were not kept or not decided: a CI run that fails says why.
    """
    if not result.comparable:
        return (annotation("warning", "not comparable", verdict(result)),)
    worth_ns = WARNING_FRAC * result.before.whole_ns
    found = []
    for row in result.rows:
        grew = row.interval is not None and row.interval.low_ns >= worth_ns
        if grew and row.kind == "line" and row.line:
            change = f"{signed_time(row.change_ns)} per step"
            was = f"{numbers.time(row.before_ns)} -> {numbers.time(row.after_ns)}"
            message = f"{row.phase}: {was} ({change}), 95 % interval {interval_text(row.interval)}"
            found.append(annotation("warning", "GPU time grew", message, row.file, row.line))
    for what, limit in result.limits:
        if limit.outcome != "pass":
            title = f"over its {what}" if limit.outcome == "fail" else f"{what} undecided"
            at = (limit.file, limit.line) if isinstance(limit, LimitResult) else ("", 0)
            found.append(annotation("warning", title, limit_line(what, limit), *at))
    return tuple(found)
