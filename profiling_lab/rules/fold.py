# SPDX-License-Identifier: Apache-2.0
"""One root cause, one finding: what another finding explains is told with that one, and not beside it.

A rule says whether its cost is idle or busy time of the GPU, and whether it names a cause or only describes a
symptom. A symptom is an effect of the causes of its kind once these explain enough of it. Two causes of one
kind at one line are one: the one that would win more tells both, a generic one (Rule.generic) never a
specific one. Of several symptoms of one kind that nothing
explains, the most specific one speaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from profiling_lab.rules.finding import Finding
from profiling_lab.rules.rule import Rule, Time

EXPLAINED_FRAC = 0.4
"""a symptom is explained by causes that would win so much of what it costs"""


def folded(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """The findings that are left, those first that would win most; each with its effects."""
    by_gain = sorted(findings, key=lambda finding: (-finding.gain_ns, finding.rule))
    causes = _one_per_line([f for f in by_gain if not rules[f.rule].symptom], rules)
    symptoms = [f for f in by_gain if rules[f.rule].symptom]
    effects: dict[int, list[Finding]] = {}
    alone: list[Finding] = []
    for symptom in symptoms:
        time = rules[symptom.rule].time
        same = [i for i, cause in enumerate(causes) if rules[cause.rule].time == time]
        if time == Time.BUSY and symptom.place:
            here = [i for i in same if _at_one_line(causes[i], symptom)]
            same = here or [i for i in same if causes[i].gain_ns >= EXPLAINED_FRAC * symptom.gain_ns]
        if same and sum(causes[i].gain_ns for i in same) >= EXPLAINED_FRAC * symptom.gain_ns:
            effects.setdefault(same[0], []).append(symptom)
        else:
            alone.append(symptom)
    told = [
        replace(cause, effects=(*cause.effects, *effects.get(i, ()))) for i, cause in enumerate(causes)
    ] + _most_specific(alone, rules)
    # What only describes comes after the causes that are worth something.
    return sorted(
        told,
        key=lambda finding: (
            rules[finding.rule].symptom or finding.severity == "low",
            -finding.gain_ns,
            finding.rule,
        ),
    )


def _one_per_line(causes: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    kept: list[Finding] = []
    for cause in sorted(causes, key=lambda finding: rules[finding.rule].generic):
        first = next(
            (
                i
                for i, other in enumerate(kept)
                if rules[other.rule].time == rules[cause.rule].time
                and other.rule != cause.rule
                and _at_one_line(other, cause)
            ),
            None,
        )
        if first is None:
            kept.append(cause)
        else:
            one = kept[first]
            more = max(one, cause, key=lambda finding: finding.gain_ns)
            kept[first] = replace(
                one,
                effects=(*one.effects, cause),
                gain_ns=more.gain_ns,
                gain_per_step_ns=more.gain_per_step_ns,
                severity=more.severity,
            )
    return sorted(kept, key=lambda finding: (-finding.gain_ns, finding.rule))


def _most_specific(symptoms: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    """Of symptoms of one kind of time the one whose rule stands last in the list of rules."""
    order = {name: number for number, name in enumerate(rules)}
    kept: dict[Time, Finding] = {}
    others: list[Finding] = []
    for symptom in sorted(symptoms, key=lambda finding: -order[finding.rule]):
        time = rules[symptom.rule].time
        if time == Time.OTHER:
            others.append(symptom)
        elif time in kept:
            kept[time] = replace(kept[time], effects=(*kept[time].effects, symptom))
        else:
            kept[time] = symptom
    return [*kept.values(), *others]


def _at_one_line(one: Finding, other: Finding) -> bool:
    return (
        one.place is not None
        and other.place is not None
        and (one.place.file, one.place.line) == (other.place.file, other.place.line)
    )
