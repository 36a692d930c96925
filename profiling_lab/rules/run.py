# SPDX-License-Identifier: Apache-2.0
"""Applying rules to a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.rules.finding import LONGER, SEVERITIES, Abstain, Finding, Severity, Verdict
from profiling_lab.rules.fold import folded
from profiling_lab.rules.platform_words import in_words_of_the_platform
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.settings import Settings
from profiling_lab.rules.steady import StartUp, steady_part
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace


@dataclass(frozen=True, slots=True)
class Checked:
    """What the rules said. Every rule is in exactly one of the three, or has at least one finding."""

    findings: tuple[Finding, ...]
    """those first that would win most, each with what it explains"""
    silent: tuple[str, ...]
    """rules that looked and found nothing"""
    abstained: tuple[tuple[str, Abstain], ...]
    """rules that could not tell, each with its reason"""
    steps: int = 0
    """that costs per step are counted by; 0 where the trace has none"""
    span_ns: int = 0
    """from the first operation to the last: what severities are shares of"""
    start_up: StartUp | None = None
    """what was left out at the beginning"""

    @property
    def could_tell(self) -> bool:
        return bool(self.findings or self.silent)


def run(
    trace: Trace,
    rules: Sequence[Rule],
    own: tuple[str, ...] = (),
    settings: Settings | None = None,
    steps_by: str | None = None,
    whole: bool = False,
) -> Checked:
    """Apply the rules. `own`: what counts as the user's code (see Ownership). `settings`: thresholds by rule
    and name that are to have other values (see parse_settings). `steps_by`: which ranges are the steps that
    costs are counted by (see step_windows). `whole`: the start-up too, and not the steady steps alone (see
    steady.py).

    Raises NotEnoughDataError if the trace has no GPU operation, or no range that `steps_by` matches.
    """
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    trace, start_up = (trace, None) if whole else steady_part(trace, steps_by)
    view = View(trace, own, steps_by)
    steps = len(view.steps) if view.steps else 0
    findings: list[Finding] = []
    silent: list[str] = []
    abstained: list[tuple[str, Abstain]] = []
    for rule in rules:
        view.settings = (settings or {}).get(rule.name, {})
        try:
            verdict: Verdict = rule.check(view)
        except NotEnoughDataError as error:
            verdict = Abstain(str(error), LONGER)
        if view.is_rocm:
            verdict = in_words_of_the_platform(verdict)
        if isinstance(verdict, Abstain):
            abstained.append((rule.name, verdict))
        elif verdict:
            findings += [_finished(finding, rule, view.span_ns) for finding in verdict]
        else:
            silent.append(rule.name)
    left = folded(findings, {rule.name: rule for rule in rules})
    return Checked(tuple(left), tuple(silent), tuple(abstained), steps, view.span_ns, start_up)


def _finished(finding: Finding, rule: Rule, span_ns: int) -> Finding:
    gain_ns = round(rule.wins_frac * finding.cost_ns)
    return replace(
        finding,
        rule=rule.name,
        cause=finding.cause or rule.name,
        gain_ns=gain_ns,
        gain_per_step_ns=None if finding.per_step_ns is None else round(rule.wins_frac * finding.per_step_ns),
        severity=_most(_severity(gain_ns, span_ns), rule),
    )


def _most(severity: Severity, rule: Rule) -> Severity:
    """A symptom alone is no grave fault: a healthy program has a hottest line and a slowest step, too."""
    if not rule.symptom or severity == "low":
        return severity
    return "low" if rule.time == Time.BUSY else "medium"


def _severity(gain_ns: int, span_ns: int) -> Severity:
    return next(name for name, share in SEVERITIES.items() if gain_ns >= share * span_ns)


def select(
    rules: Sequence[Rule], only: Sequence[str] | None = None, skip: Sequence[str] = ()
) -> tuple[Rule, ...]:
    """The rules of these names, in this order; without `only` all but `skip`.

    Raises UsageError for a name that there is not, and where nothing is left.
    """
    by_name = {rule.name: rule for rule in rules}
    if len(by_name) < len(rules):
        twice = next(rule.name for rule in rules if rule is not by_name[rule.name])
        raise UsageError(f"two rules have the name {twice!r}")
    wanted = list(by_name) if only is None else list(only)
    if unknown := [name for name in (*wanted, *skip) if name not in by_name]:
        raise UsageError(f"there is no rule {unknown[0]!r}; the rules are {', '.join(by_name)}")
    chosen = tuple(by_name[name] for name in dict.fromkeys(wanted) if name not in skip)
    if not chosen:
        raise UsageError("no rule is left to apply")
    return chosen
