# SPDX-License-Identifier: Apache-2.0
"""The rules themselves: every threshold with its source as a table, and one rule explained at length."""

from __future__ import annotations

from collections.abc import Sequence

from profiling_lab.report import numbers
from profiling_lab.report.table import Column, Report, Table, Value
from profiling_lab.rules import Rule
from profiling_lab.rules.finding import SEVERITIES
from profiling_lab.rules.settings import Settings

_THRESHOLD = (
    Column("set", "threshold"),
    Column("value", "value"),
    Column("default", "default"),
    Column("unit", "unit"),
    Column("what", "what"),
    Column("source", "source"),
)
COLUMNS = (Column("rule", "rule"), Column("question", "question"), *_THRESHOLD)


def rules_report(rules: Sequence[Rule], settings: Settings) -> Report:
    """Every threshold of every rule, and who says that it should be this one."""
    rows: list[tuple[Value, ...]] = []
    for rule in rules:
        head = (rule.name, rule.question)
        rows += [(*head, *cells) for cells in _rows(rule, settings)] or [(*head, "", "", "", "", "", "")]
    header = (
        f"{numbers.counted(len(rules), 'rule')}; `profiling-lab rules NAME` explains one, "
        "`profiling-lab check FILE --set NAME.THRESHOLD=VALUE` sets a threshold",
        f"severity by the share of the recording that a finding costs: {_severities()} (as nsys-ai draws it)",
    )
    return Report("rules", {}, header, Table(COLUMNS, tuple(rows), len(rows)), {})


def rule_report(rule: Rule, settings: Settings) -> Report:
    """One rule: what it looks at, how it decides, and its thresholds."""
    rows = _rows(rule, settings)
    about = tuple(line.rstrip() for line in (rule.about.strip() or rule.question).splitlines())
    header = (f"{rule.name}: {about[0]}", *about[1:])
    text = " ".join(line for line in about if line)
    summary = {"rule": rule.name, "question": rule.question, "about": text}
    return Report("rules", {}, header, Table(_THRESHOLD, rows, len(rows)), {}, summary)


def _rows(rule: Rule, settings: Settings) -> tuple[tuple[Value, ...], ...]:
    mine = settings.get(rule.name, {})
    return tuple(
        (
            f"{rule.name}.{t.name}",
            _shown(mine.get(t.name, t.value)),
            _shown(t.value),
            t.unit,
            t.what,
            t.source,
        )
        for t in rule.thresholds
    )


def _shown(value: float) -> str:
    return f"{value:.4g}" if value < 1 else f"{value:,.10g}"


def _severities() -> str:
    return (
        ", ".join(f"{name} from {100 * share:g} %" for name, share in SEVERITIES.items() if share) + ", low"
    )
