# SPDX-License-Identifier: Apache-2.0
"""One root cause, one finding: a finding that another one explains is listed below that one.

A rule says whether its cost is idle or busy time of the GPU, and whether it names a cause or only describes
a symptom. A symptom is folded into the causes of its kind of time if they explain enough of it. Two causes
of one kind at one line are folded into the one with the larger saving, but never a specific cause into a
generic one (Rule.generic), except for host code that is little compared with it. Their savings are the larger
one, or the sum where one is no part of the other (Rule.adds). A cause that makes many
lines slow (Rule.all_lines) explains their idle time wherever it is. Of several symptoms of one
kind that no cause explains, only the most specific one is listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiling_lab.analysis.critical_path.savings import Saving
from profiling_lab.analysis.gaps.causes import Cause
from profiling_lab.records import replace
from profiling_lab.rules.finding import Finding
from profiling_lab.rules.gap_words import WORDS
from profiling_lab.rules.rule import Rule, Time

EXPLAINED_FRAC = 0.4
"""a symptom is explained if its causes would save at least this fraction of its cost"""
TELLS_FRAC = 0.1
"""where most time is tells more than what would save less than this fraction of it"""
RIGHT_WITHIN = 1.5
"""gains are estimates: two that differ by less than this factor may be equal"""
HOST_WORK = WORDS[Cause.HOST_CODE]


def folded(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """The findings that remain, the largest saving first, each with its effects."""
    by_gain = sorted(findings, key=lambda finding: (-finding.rank_ns, finding.rule))
    causes = _one_per_line([f for f in by_gain if not rules[f.rule].symptom], rules)
    symptoms = [f for f in by_gain if rules[f.rule].symptom]
    effects: dict[int, list[Finding]] = {}
    alone: list[Finding] = []
    for symptom in symptoms:
        time = rules[symptom.rule].time
        shared_ns = {
            i: _shared_ns(cause, symptom, time)
            for i, cause in enumerate(causes)
            if rules[cause.rule].time == time
        }
        if shared_ns and sum(shared_ns.values()) >= EXPLAINED_FRAC * symptom.rank_ns:
            most = max(shared_ns, key=lambda i: (shared_ns[i], -i))
            effects.setdefault(most, []).append(symptom)
        else:
            alone.append(symptom)
    told = [
        replace(cause, effects=(*cause.effects, *effects.get(i, ()))) for i, cause in enumerate(causes)
    ] + _most_specific(alone, rules)
    return sorted(told, key=lambda finding: order(finding, rules))


def order(finding: Finding, rules: Mapping[str, Rule]) -> tuple[bool, float, str]:
    """What saves little, and what happened once, comes last. Gains are right within a factor: of two that
    differ by less, the one whose cause is specific tells more. A symptom that no cause explains comes before
    causes that would not explain it wherever they were: they save less than that fraction of what it may
    save. One that does not know what it may save comes last, with what saves little; among these, the line
    with most of the time comes before causes that save little of that.
    """
    rule = rules[finding.rule]
    if rule.symptom:
        little = finding.little or finding.saving is None
        held_ns = sum(ns for _, ns in finding.gpu_ns_by_line) if little else 0
        return little, -max(EXPLAINED_FRAC * finding.rank_ns, TELLS_FRAC * held_ns), finding.rule
    saves_ns = finding.rank_ns if finding.gain_ns is None else finding.gain_ns
    little = finding.severity == "low" or finding.once
    return little, -saves_ns / (RIGHT_WITHIN if _is_generic(finding, rules) else 1), finding.rule


def _is_generic(finding: Finding, rules: Mapping[str, Rule]) -> bool:
    """A generic rule may know the cause of some of its findings."""
    return rules[finding.rule].generic and finding.cause == finding.rule


def _one_per_line(causes: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    kept: list[Finding] = []
    for cause in sorted(causes, key=lambda finding: _says_little(finding, rules)):
        first = next(
            (
                i
                for i, other in enumerate(kept)
                if rules[other.rule].time == rules[cause.rule].time
                and other.rule != cause.rule
                and (
                    _at_one_line(other, cause) or (rules[other.rule].all_lines and cause.cause == other.rule)
                )
            ),
            None,
        )
        if first is None:
            kept.append(cause)
        else:
            one = kept[first]
            little = one.cause == HOST_WORK and one.rank_ns < EXPLAINED_FRAC * cause.rank_ns
            if _is_generic(cause, rules) and little:  # the host code between the launches, at one in many
                kept[first] = replace(cause, effects=(*cause.effects, one))
                continue
            both = rules[cause.rule].adds or rules[one.rule].adds
            more = max(one, cause, key=lambda finding: finding.rank_ns)
            kept[first] = replace(
                one,
                effects=(*one.effects, cause),
                rank_ns=one.rank_ns + cause.rank_ns if both else more.rank_ns,
                saving=_saving(one, cause, both),
                severity=more.severity,
            )
    return sorted(kept, key=lambda finding: (-finding.rank_ns, finding.rule))


def _saving(one: Finding, other: Finding, both: bool) -> Saving | None:
    """What the remedies take away: that of the larger one, or of both if both are at the same lines."""
    if one.saving is None or other.saving is None or one.elsewhere or other.elsewhere:
        return one.saving if one.saving and not one.elsewhere else other.saving
    if both:
        return one.saving | other.saving
    return max(one, other, key=lambda finding: finding.rank_ns).saving


def _says_little(cause: Finding, rules: Mapping[str, Rule]) -> bool:
    """Whether another cause at the same line, or the rule for this kind of idle time, is more specific."""
    return _is_generic(cause, rules) or (cause.cause != cause.rule and cause.cause in rules)


def _most_specific(symptoms: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """For each kind of time, the symptoms of the rule that comes last in the list of rules."""
    order = {name: number for number, name in enumerate(rules)}
    kept: list[Finding] = []
    first: dict[Time, int] = {}
    for symptom in sorted(symptoms, key=lambda finding: -order[finding.rule]):
        time = rules[symptom.rule].time
        one = kept[first[time]] if time in first and time != Time.OTHER else None
        if one is not None and one.rule != symptom.rule:  # another GPU or line is not an effect of this one
            kept[first[time]] = replace(one, effects=(*one.effects, symptom))
        else:
            first.setdefault(time, len(kept))
            kept.append(symptom)
    return kept


def _shared_ns(cause: Finding, symptom: Finding, time: Time) -> float:
    """How much of the saving of the cause is time of the symptom. Busy time is compared by line, because
    a kernel at one line does not explain the time of another line. Idle time is that of the whole GPU.
    """
    if _of_two_kernels(cause, symptom):
        return 0
    if time != Time.BUSY or symptom.place is None:
        return cause.rank_ns
    if not (cause.gpu_ns_by_line and symptom.gpu_ns_by_line):
        return cause.rank_ns if _at_one_line(cause, symptom) else 0
    its = dict(symptom.gpu_ns_by_line)
    shared_ns = sum(min(ns, its.get(line, 0)) for line, ns in cause.gpu_ns_by_line)
    return cause.rank_ns * shared_ns / max(sum(ns for _, ns in cause.gpu_ns_by_line), 1)


def _at_one_line(one: Finding, other: Finding) -> bool:
    return (
        one.place is not None
        and other.place is not None
        and (one.place.file, one.place.line) == (other.place.file, other.place.line)
        and not _of_two_kernels(one, other)
    )


def _of_two_kernels(one: Finding, other: Finding) -> bool:
    return "" not in (one.kernel, other.kernel) and one.kernel != other.kernel
