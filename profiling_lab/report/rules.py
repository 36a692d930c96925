# SPDX-License-Identifier: Apache-2.0
"""The rules themselves: every threshold with its source as a table, and one rule explained at length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiling_lab.records import dataclass
from profiling_lab.report import numbers
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.table import Report, Table
from profiling_lab.rules import Rule
from profiling_lab.rules.finding import SEVERITIES, Threshold
from profiling_lab.rules.settings import Settings


@dataclass(frozen=True, slots=True)
class _Row:
    """A threshold of a rule with the number in use; None where a rule has no threshold."""

    rule: Rule
    threshold: Threshold | None = None
    value: float = 0.0


def _field(key: str, of: Callable[[_Row, Threshold], str], title: str = "") -> Field:
    return Field(key, title or key, value=lambda row: of(row, row.threshold) if row.threshold else "")


_THRESHOLD = (
    _field("set", lambda row, threshold: f"{row.rule.name}.{threshold.name}", "threshold"),
    _field("value", lambda row, _: _shown(row.value)),
    _field("default", lambda _, threshold: _shown(threshold.value)),
    _field("unit", lambda _, threshold: threshold.unit),
    _field("what", lambda _, threshold: threshold.what),
    _field("source", lambda _, threshold: threshold.source),
)
_RULE = (Field("rule", "rule", value="rule.name"), Field("question", "question", value="rule.question"))


def rules_report(rules: Sequence[Rule], settings: Settings) -> Report:
    """Every threshold of every rule, and its source."""
    rows = [row for rule in rules for row in _rows(rule, settings) or (_Row(rule),)]
    header = (
        f"{numbers.counted(len(rules), 'rule')}; `profiling-lab rules NAME` explains one, "
        "`profiling-lab check FILE --set NAME.THRESHOLD=VALUE` sets a threshold",
        f"severity by the share of the recording that a finding costs: {_severities()} (as nsys-ai draws it)",
    )
    return Report("rules", {}, header, _table((*_RULE, *_THRESHOLD), rows), {})


def rule_report(rule: Rule, settings: Settings) -> Report:
    """One rule: what it looks at, how it decides, and its thresholds."""
    rows = _rows(rule, settings)
    about = tuple(line.rstrip() for line in (rule.about.strip() or rule.question).splitlines())
    header = (f"{rule.name}: {about[0]}", *about[1:])
    text = " ".join(line for line in about if line)
    summary = {"rule": rule.name, "question": rule.question, "about": text}
    return Report("rules", {}, header, _table(_THRESHOLD, rows), {}, summary)


def _rows(rule: Rule, settings: Settings) -> tuple[_Row, ...]:
    mine = settings.get(rule.name, {})
    return tuple(
        _Row(rule, threshold, mine.get(threshold.name, threshold.value)) for threshold in rule.thresholds
    )


def _table(fields: tuple[Field, ...], rows: Sequence[_Row]) -> Table:
    return table_of(fields, " ".join(field.key for field in fields), rows, len(rows))


def _shown(value: float) -> str:
    return f"{value:.4g}" if value < 1 else f"{value:,.10g}"


def _severities() -> str:
    return (
        ", ".join(f"{name} from {100 * share:g} %" for name, share in SEVERITIES.items() if share) + ", low"
    )
