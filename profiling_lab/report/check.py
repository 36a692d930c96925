# SPDX-License-Identifier: Apache-2.0
"""What the rules found: a table with evidence and remedy under each row, or annotations for CI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from profiling_lab.analysis.coverage import Coverage
from profiling_lab.report import numbers
from profiling_lab.report.annotations import Level, annotation
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.lines import frame_data, shown_path
from profiling_lab.report.table import Column, Report, Table, Unit, Value
from profiling_lab.rules import Abstain, Checked, Finding
from profiling_lab.trace import Trace

_COST = Column("cost_ns", "cost", Unit.NS, "cost")
_PER_STEP = Column("per_step_ns", "per step", Unit.NS, "step")
_REST = (Column("severity", "severity"), Column("what", "finding"))
COSTS = "costs are the most that could be won; the same time may be in several findings: do not add them"
_SHOWN_EVIDENCE = 3
_LEVELS: dict[str, Level] = {"high": "warning", "medium": "warning", "low": "notice"}


def check_report(trace: Trace, checked: Checked, coverage: Coverage, limit: int | None) -> Report:
    shown = checked.findings[:limit]
    columns = (_COST, *((_PER_STEP,) if checked.steps else ()), *_REST)
    return Report(
        command="check",
        trace={"path": str(trace.path)},
        header=(*coverage_header(trace, coverage), *_verdict(checked)),
        table=Table(
            columns,
            tuple(_cells(finding, bool(checked.steps)) for finding in shown),
            len(checked.findings),
            tuple(_details(finding) for finding in shown),
            tuple(_data(finding, key) for finding, key in zip(shown, _keys(shown), strict=True)),
            details_in="what",
        ),
        coverage=coverage_data(coverage)
        | {
            "steps": checked.steps,
            "span_ns": checked.span_ns,
            "costs": COSTS,
            "silent": list(checked.silent),
            "abstained": [
                {"rule": rule, "reason": abstain.reason, "to_record": abstain.to_record}
                for rule, abstain in checked.abstained
            ],
        },
    )


def check_annotations(checked: Checked) -> tuple[str, ...]:
    """One workflow command per finding: a warning where it costs enough, a notice else. The rules that could
    not tell share a notice: silence would read as "nothing found".
    """
    untold = "; ".join(f"{rule}: {_why(abstain)}" for rule, abstain in checked.abstained)
    found = tuple(
        annotation(
            _LEVELS[finding.severity],
            f"{finding.rule} ({numbers.time(finding.cost_ns)})",
            f"{finding.what}. Do: {finding.remedy}",
            finding.place.file if finding.place else "",
            finding.place.line if finding.place else 0,
        )
        for finding in checked.findings
    )
    return (*found, annotation("notice", "could not tell", untold)) if untold else found


def _verdict(checked: Checked) -> tuple[str, ...]:
    """Findings, silence and "could not tell" are three things; the reader sees all of them."""
    fired = len({finding.rule for finding in checked.findings})
    found = f"{numbers.counted(len(checked.findings), 'finding')} of {numbers.counted(fired, 'rule')}"
    lines = [found if checked.findings else "no findings"]
    if checked.start_up:
        lines.append(f"  {checked.start_up}")
    if checked.findings:
        lines.append(f"  {COSTS}")
    if checked.silent:
        lines.append(f"  nothing found by: {', '.join(checked.silent)}")
    return (*lines, *(f"  could not tell: {rule}: {_why(abstain)}" for rule, abstain in checked.abstained))


def _why(abstain: Abstain) -> str:
    return f"{abstain.reason}; it takes {abstain.to_record}" if abstain.to_record else abstain.reason


def _cells(finding: Finding, has_steps: bool) -> tuple[Value, ...]:
    per_step = (finding.per_step_ns,) if has_steps else ()
    return (finding.cost_ns, *per_step, finding.severity, finding.what)


def _details(finding: Finding) -> tuple[str, ...]:
    place = finding.place
    where = f"{shown_path(place.file)}:{place.line} {place.function}" if place else "no line known"
    shown = ", ".join(map(str, finding.evidence[:_SHOWN_EVIDENCE]))
    more = f" and {finding.events - _SHOWN_EVIDENCE:,} more" if finding.events > _SHOWN_EVIDENCE else ""
    return (
        f"at {where}; rule {finding.rule}; cost: {finding.cost_of}; confidence {finding.confidence}",
        f"do: {finding.remedy}",
        *_effects(finding),
        f"evidence: {shown}{more}",
    )


def _effects(finding: Finding) -> tuple[str, ...]:
    """What the finding explains, in a line."""
    names = dict.fromkeys(effect.cause for effect in finding.effects)
    names.pop(finding.cause, None)
    return (f"explains: {', '.join(names)}",) if names else ()


def _keys(findings: Sequence[Finding]) -> list[str]:
    """`dataloader train.py:42`; the second of a rule at one line, the cheaper, ends with ` #2`."""
    seen: Counter[str] = Counter()
    keys = []
    for finding in findings:
        place = finding.place
        key = f"{finding.rule} {shown_path(place.file)}:{place.line}" if place else finding.rule
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key} #{seen[key]}")
    return keys


def _data(finding: Finding, key: str) -> dict[str, Any]:
    place = frame_data(finding.place) if finding.place else {"function": "", "file": "", "line": None}
    return {
        "key": key,
        "rule": finding.rule,
        "cause": finding.cause,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "cost_ns": finding.cost_ns,
        "per_step_ns": finding.per_step_ns,
        "gain_ns": finding.gain_ns,
        "gain_per_step_ns": finding.gain_per_step_ns,
        "cost_of": finding.cost_of,
        **place,
        "what": finding.what,
        "remedy": finding.remedy,
        "events": finding.events,
        "effects": [{"rule": effect.rule, "what": effect.what} for effect in finding.effects],
        "evidence": [
            {"table": event.table, "row": event.row, "start_ns": event.start_ns} for event in finding.evidence
        ],
    }
