# SPDX-License-Identifier: Apache-2.0
"""What the rules found as a table, and the thresholds of the rules as another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiling_lab.report import numbers
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.lines import frame_data, shown_path
from profiling_lab.report.table import Column, Report, Table, Unit
from profiling_lab.rules import Checked, Finding, Rule
from profiling_lab.trace import Trace
from profiling_lab.trace.coverage import Coverage

COLUMNS = (Column("cost_ns", "cost", Unit.NS), Column("what", "finding"))
LIST_COLUMNS = (
    Column("rule", "rule"),
    Column("question", "question"),
    Column("what", "threshold"),
    Column("value", "value"),
    Column("unit", "unit"),
    Column("source", "source"),
)
_SHOWN_EVIDENCE = 3


def check_report(trace: Trace, checked: Checked, coverage: Coverage, limit: int | None) -> Report:
    shown = checked.findings[:limit]
    return Report(
        command="check",
        trace={"path": str(trace.path)},
        header=(*coverage_header(trace, coverage), *_verdict(checked)),
        table=Table(
            COLUMNS,
            tuple((finding.cost_ns, finding.what) for finding in shown),
            len(checked.findings),
            tuple(_details(finding) for finding in shown),
            tuple(_data(finding) for finding in shown),
        ),
        coverage=coverage_data(coverage)
        | {
            "silent": list(checked.silent),
            "abstained": [{"rule": rule, "reason": reason} for rule, reason in checked.abstained],
        },
    )


def _verdict(checked: Checked) -> tuple[str, ...]:
    """Findings, silence and "could not tell" are three things; the reader sees all of them."""
    fired = len({finding.rule for finding in checked.findings})
    found = f"{numbers.counted(len(checked.findings), 'finding')} of {numbers.counted(fired, 'rule')}"
    lines = [found if checked.findings else "no findings"]
    if checked.silent:
        lines.append(f"  nothing found by: {', '.join(checked.silent)}")
    return (*lines, *(f"  could not tell: {rule}: {reason}" for rule, reason in checked.abstained))


def _details(finding: Finding) -> tuple[str, ...]:
    place = finding.place
    where = f"{shown_path(place.file)}:{place.line} {place.function}" if place else "no line known"
    shown = ", ".join(map(str, finding.evidence[:_SHOWN_EVIDENCE]))
    more = f" and {finding.events - _SHOWN_EVIDENCE:,} more" if finding.events > _SHOWN_EVIDENCE else ""
    return (
        f"at {where}; rule {finding.rule}; cost: {finding.cost_of}",
        f"do: {finding.remedy}",
        f"evidence: {shown}{more}",
    )


def _data(finding: Finding) -> dict[str, Any]:
    place = frame_data(finding.place) if finding.place else {"function": "", "file": "", "line": None}
    return {
        "key": f"{finding.rule} {place['file']}:{place['line']}" if finding.place else finding.rule,
        "rule": finding.rule,
        "cost_ns": finding.cost_ns,
        "cost_of": finding.cost_of,
        **place,
        "what": finding.what,
        "remedy": finding.remedy,
        "events": finding.events,
        "evidence": [
            {"table": event.table, "row": event.row, "start_ns": event.start_ns} for event in finding.evidence
        ],
    }


def rules_report(rules: Sequence[Rule]) -> Report:
    """Every threshold of every rule, and who says that it should be this one."""
    rows = tuple(
        (
            rule.name,
            rule.question,
            t.what,
            f"{t.value:.4g}" if t.value < 1 else f"{t.value:,.0f}",
            t.unit,
            t.source,
        )
        for rule in rules
        for t in rule.thresholds
    )
    without = tuple((rule.name, rule.question, "none", "", "", "") for rule in rules if not rule.thresholds)
    return Report("check", {}, (), Table(LIST_COLUMNS, rows + without, len(rows + without)), {})
