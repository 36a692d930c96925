# SPDX-License-Identifier: Apache-2.0
"""What the rules found: a table with evidence and remedy under each row, or annotations for CI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.critical_path.recorder_time import SAID_FRAC
from profiling_lab.report import numbers
from profiling_lab.report.annotations import Level, annotation
from profiling_lab.report.coverage_text import coverage_data, coverage_header
from profiling_lab.report.fields import Field, frame_fields, table_of
from profiling_lab.report.paths import shown_path
from profiling_lab.report.source_text import SourceTexts, source_fields, text_of
from profiling_lab.report.table import ALWAYS, Report, Unit
from profiling_lab.rules import Abstain, Checked, Event, Finding
from profiling_lab.trace import Trace

COSTS = "costs are the most that could be won; the same time may be in several findings: do not add them"
_SHOWN_EVIDENCE = 3
_LEVELS: dict[str, Level] = {"high": "warning", "medium": "warning", "low": "notice"}


def check_report(trace: Trace, checked: Checked, coverage: Coverage, limit: int | None) -> Report:
    shown = checked.findings[:limit]
    per_step = "per_step_ns" if checked.steps else ""
    return Report(
        command="check",
        trace={"path": str(trace.path)},
        header=(*coverage_header(trace, coverage), *check_header(checked)),
        table=table_of(
            _fields(shown, trace.source_texts),
            f"cost_ns {per_step} severity what",
            shown,
            len(checked.findings),
            (_details(finding, trace.source_texts) for finding in shown),
            details_in="what",
        ),
        below=_untold(checked),
        coverage=coverage_data(coverage)
        | {
            "steps": checked.steps,
            "span_ns": checked.span_ns,
            "recording_ns": checked.recording_ns,
            "costs": COSTS,
            "silent": list(checked.silent),
            "abstained": [
                {"rule": rule, "reason": abstain.reason, "to_record": abstain.to_record}
                for rule, abstain in checked.abstained
            ],
        },
    )


def check_annotations(checked: Checked) -> tuple[str, ...]:
    """One workflow command per finding: a warning where it costs enough, a notice else. The rules that
    abstained share a notice: silence would read as "nothing found".
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


def check_header(checked: Checked) -> tuple[str, ...]:
    """What was found in all, and what to know of the costs."""
    fired = len({finding.rule for finding in checked.findings})
    found = f"{numbers.counted(len(checked.findings), 'finding')} of {numbers.counted(fired, 'rule')}"
    lines = [found if checked.findings else "no findings"]
    if checked.start_up:
        lines.append(f"  {checked.start_up}")
    if checked.findings:
        lines.append(f"  {COSTS}")
    if checked.recording_ns and checked.recording_ns * checked.steps >= SAID_FRAC * checked.span_ns:
        longer = numbers.time(checked.recording_ns)
        lines.append(f"  recording makes a step about {longer} longer: what is saved is said without it")
    return tuple(lines)


def _untold(checked: Checked) -> tuple[str, ...]:
    """Silence and "abstained" are two things; the reader sees both. Rules with one reason share a line."""
    rules: dict[str, list[str]] = {}
    for rule, abstain in checked.abstained:
        rules.setdefault(_why(abstain), []).append(rule)
    silent = (f"nothing found by: {', '.join(checked.silent)}",) if checked.silent else ()
    return (*silent, *(f"could not tell: {', '.join(names)}: {why}" for why, names in rules.items()))


def _why(abstain: Abstain) -> str:
    return f"{abstain.reason}; it takes {abstain.to_record}" if abstain.to_record else abstain.reason


def _details(finding: Finding, texts: SourceTexts) -> tuple[str, ...]:
    place = finding.place
    where = f"{shown_path(place.file)}:{place.line} {place.function}" if place else "no line known"
    shown = ", ".join(map(str, finding.evidence[:_SHOWN_EVIDENCE]))
    more = f" and {finding.events - _SHOWN_EVIDENCE:,} more" if finding.events > _SHOWN_EVIDENCE else ""
    text = text_of(texts, place)
    return (
        f"at {where}; rule {finding.rule}; cost: {finding.cost_of}; confidence {finding.confidence}",
        *((f"source: {text}",) if text else ()),
        f"do: {finding.remedy}",
        *_saves(finding),
        *_effects(finding),
        f"evidence: {shown}{more}",
    )


def _saves(finding: Finding) -> tuple[str, ...]:
    """What the remedy would win, from the graph of the steps; or the most that it could."""
    if finding.gain_ns == 0:
        return ("saves: nothing as long as something else sets the pace (critical-path)",)
    if finding.gain_per_step_ns is not None:
        return (f"saves: {numbers.time(finding.gain_per_step_ns)} per step",)
    if finding.gain_ns is not None:
        return (f"saves: {numbers.time(finding.gain_ns)}",)
    if finding.at_most_per_step_ns:
        return (f"saves: at most {numbers.time(finding.at_most_per_step_ns)} per step",)
    return ()


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


def _fields(findings: Sequence[Finding], texts: SourceTexts) -> tuple[Field, ...]:
    keys = dict(zip(map(id, findings), _keys(findings), strict=True))
    return (
        Field("key", value=lambda finding: keys[id(finding)]),
        Field("rule"),
        Field("cause"),
        Field("severity", "severity"),
        Field("confidence"),
        Field("cost_ns", "cost", Unit.NS, "cost", priority=ALWAYS),
        Field("per_step_ns", "per step", Unit.NS, "step"),
        Field("gain_ns"),
        Field("gain_per_step_ns"),
        Field("at_most_per_step_ns"),
        Field("cost_of"),
        *frame_fields("place"),
        *source_fields(texts, "place"),
        Field("what", "finding", priority=ALWAYS),
        Field("remedy"),
        Field("events"),
        Field("effects", value=lambda found: [{"rule": e.rule, "what": e.what} for e in found.effects]),
        Field("evidence", value=lambda found: [_event(each) for each in found.evidence]),
    )


def _event(event: Event) -> dict[str, object]:
    return {"table": event.table, "row": event.row, "start_ns": event.start_ns}
