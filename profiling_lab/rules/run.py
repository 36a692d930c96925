# SPDX-License-Identifier: Apache-2.0
"""Apply rules to a trace."""

from __future__ import annotations

from collections.abc import Sequence

from profiling_lab.analysis.ncu.report import Report
from profiling_lab.errors import NotEnoughDataError, UsageError
from profiling_lab.records import dataclass, replace
from profiling_lab.rules.finding import LONGER, Abstain, Finding, RuleResult, Severity, lower, severity_of
from profiling_lab.rules.fold import folded
from profiling_lab.rules.gains import with_gains
from profiling_lab.rules.platform_words import in_words_of_the_platform
from profiling_lab.rules.rule import Rule, Time
from profiling_lab.rules.settings import Settings
from profiling_lab.rules.steady import StartUp, steady_part
from profiling_lab.rules.view import View
from profiling_lab.trace import Trace
from profiling_lab.trace.platform import words_of


@dataclass(frozen=True, slots=True)
class Checked:
    """The results of all rules. Each rule either has findings, found nothing, or abstained."""

    findings: tuple[Finding, ...]
    """the largest saving first, each with the findings that it explains"""
    silent: tuple[str, ...]
    """rules that found nothing"""
    abstained: tuple[tuple[str, Abstain], ...]
    """rules that could not decide, each with its reason"""
    steps: int = 0
    """the number of steps for costs per step; 0 if the trace has none"""
    span_ns: int = 0
    """from the first operation to the last: severities are shares of it"""
    start_up: StartUp | None = None
    """the start-up that was excluded"""
    recording_ns: int | None = None
    """how much longer recording makes a step, about: what is saved is said without it; None: not known"""

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
    report: Report | None = None,
) -> Checked:
    """Apply the rules. `own`: the user's code (see Ownership). `settings`: thresholds to override, by rule
    and name (see parse_settings). `steps_by`: the ranges that are steps (see step_windows). `whole`: include
    the start-up instead of the steady steps alone (see steady.py). `report`: of Nsight Compute, of the same
    program.

    Raises NotEnoughDataError if the trace has no GPU operation, or no range that matches `steps_by`.
    """
    if not len(trace.operations):
        raise NotEnoughDataError(trace.why_empty())
    trace, start_up = (trace, None) if whole else steady_part(trace, steps_by)
    view = View(trace, own, steps_by)
    view.report = report
    steps = len(view.steps) if view.steps else 0
    words = words_of(trace)
    findings: list[Finding] = []
    silent: list[str] = []
    abstained: list[tuple[str, Abstain]] = []
    for rule in rules:
        view.settings = (settings or {}).get(rule.name, {})
        try:
            result: RuleResult = rule.check(view)
        except NotEnoughDataError as error:
            result = Abstain(str(error), LONGER)
        result = in_words_of_the_platform(words, result)
        if isinstance(result, Abstain):
            abstained.append((rule.name, result))
        elif result:
            findings += [_finished(finding, rule, view.span_ns) for finding in result]
        else:
            silent.append(rule.name)
    by_name = {rule.name: rule for rule in rules}
    left, recording_ns = with_gains(view, folded(findings, by_name), by_name)
    return Checked(tuple(left), tuple(silent), tuple(abstained), steps, view.span_ns, start_up, recording_ns)


def _finished(finding: Finding, rule: Rule, span_ns: int) -> Finding:
    frac = rule.wins_frac if finding.wins_frac is None else finding.wins_frac
    rank_ns = round(frac * finding.cost_ns)
    return replace(
        finding,
        rule=rule.name,
        cause=finding.cause or rule.name,
        rank_ns=rank_ns,
        wins_frac=frac,
        little=severity_of(rank_ns, span_ns) == "low",
        severity=lower(
            rule.severity(rank_ns, span_ns), lower(_most(rule, finding.once), finding.severity_at_most)
        ),
    )


def _most(rule: Rule, once: bool) -> Severity:
    """A symptom alone is not of high severity: every program has a hottest line and a slowest step. Nor is
    what happened in one step only: a first evaluation or a checkpoint.
    """
    if rule.symptom:
        return "low" if rule.time == Time.BUSY else "medium"
    return lower("medium", rule.severity_at_most) if once else rule.severity_at_most


def select(
    rules: Sequence[Rule], only: Sequence[str] | None = None, skip: Sequence[str] = ()
) -> tuple[Rule, ...]:
    """The rules with these names, in this order; without `only` all but `skip`.

    Raises UsageError for an unknown name, and if no rule is left.
    """
    by_name = {rule.name: rule for rule in rules}
    if len(by_name) < len(rules):
        twice = next(rule.name for rule in rules if rule is not by_name[rule.name])
        raise UsageError(f"two rules have the same name {twice!r}")
    wanted = list(by_name) if only is None else list(only)
    if unknown := [name for name in (*wanted, *skip) if name not in by_name]:
        raise UsageError(f"there is no rule {unknown[0]!r}; the rules are {', '.join(by_name)}")
    chosen = tuple(by_name[name] for name in dict.fromkeys(wanted) if name not in skip)
    if not chosen:
        raise UsageError("no rule is left to apply")
    return chosen
