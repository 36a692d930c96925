# SPDX-License-Identifier: Apache-2.0
"""Grade answers about a report of ncu. The right answers are computed from the learner's own report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from profiling_lab.analysis.ncu.consistency import contradictions
from profiling_lab.analysis.ncu.report import Report, ReportError, read
from profiling_lab.exercises.answers import Answers, is_near
from profiling_lab.exercises.exercise import GradedCheck, Need, failed, not_checked, passed

STARTER, SOLUTION = "recorded/starter_h200.csv", "recorded/solution_h200.csv"
_SCALES = {1e-9: "n", 1e-6: "u", 1e-3: "m", 0.01: "%", 100.0: "%", 1e3: "k", 1e6: "M", 1e9: "G", 1e12: "T"}
Right = TypeVar("Right")


@dataclass(frozen=True, slots=True)
class Number:
    """A question for a number. The unit is part of the key's name in answer.toml."""

    key: str
    right: Callable[[Any], float]
    """from a report, or what another exercise asks about"""
    advice: str
    slack_frac: float = 0.03
    slack: float = 0.0

    def fits(self, given: float, right: float) -> bool:
        return is_near(given, right, self.slack, self.slack_frac)


@dataclass(frozen=True, slots=True)
class Name:
    """A question for a kernel, or for one of a few words."""

    key: str
    right: Callable[[Any], Collection[str]]
    advice: str
    choices: tuple[str, ...] = ()
    """the words to choose from; none: the kernels of the report"""


Question = Number | Name


@dataclass(frozen=True, slots=True)
class Source:
    """What a usable report of an exercise holds."""

    folder: Path
    """the folder of the exercise, with its own recording"""
    program: str
    """the name of the process"""
    functions: tuple[str, ...]
    """the kernels that must be in the report"""
    counters: tuple[str, ...]
    """the metrics that each of these kernels must have"""
    planted: Callable[[Report], str] = lambda _: ""
    """why a report is not of the unchanged program; empty if it is"""


def opened(source: Source, path: Path, *, unchanged: bool = True) -> Report:
    """A report whose numbers belong to one another. Raises ReportError."""
    if not path.is_file():
        raise ReportError(f"there is no report {path.name}: `profiling-lab exercise profile` makes one")
    report = read(path)
    found = contradictions(report, program=source.program, functions=source.functions, needs=source.counters)
    if not found and unchanged and (text := source.planted(report)):
        found = [f"{text}: this is no report of the unchanged program"]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ReportError(f"{found[0]}{more}")
    return report


def named(source: Source, workspace: Path, answers: Answers) -> Path:
    """The report that answer.toml names; the one that came with the exercise if it names none."""
    given = answers.text("trace")
    return workspace / given if given else source.folder / STARTER


def findings(
    source: Source, questions: Collection[Question], workspace: Path, answers: Answers
) -> list[GradedCheck]:
    """The check "report", and one check for each question."""
    path = named(source, workspace, answers)
    try:
        report = opened(source, path)
        checks = [graded(question, report, answers) for question in questions]
    except ReportError as error:
        reason = "there is no usable report to check it against"
        return [failed("report", str(error)), *(not_checked(each.key, reason) for each in questions)]
    return [passed("report", whose(source, path)), *checks]


def whose(source: Source, path: Path) -> str:
    """Whether a report is the learner's own. A copy of the recorded one under another name is not."""
    recorded = source.folder / STARTER
    is_same = recorded.is_file() and recorded.read_bytes() == path.read_bytes()
    return "the one that came with the exercise" if is_same else "your own"


def graded(question: Question, report: Any, answers: Answers) -> GradedCheck:
    """The check of one question. report: what `right` of the question takes."""
    if isinstance(question, Name):
        return _name(question, report, answers)
    given, right = answers.number(question.key), question.right(report)
    if given is None:
        return failed(question.key, f"not answered yet: {question.advice}")
    if question.fits(given, right):
        return passed(question.key, f"{given:g}")
    for factor, letter in _SCALES.items():
        if question.fits(given / factor, right):
            unit = "a fraction or per cent" if letter == "%" else f"the prefix {letter}"
            return failed(question.key, f"{given:g} is in another unit ({unit}): the key's name says which")
    return failed(question.key, f"not {given:g}: {question.advice}")


def _name(question: Name, report: Any, answers: Answers) -> GradedCheck:
    given = (answers.text(question.key) or "").strip()
    choices = question.choices or tuple(dict.fromkeys(launch.function for launch in report.launches))
    if not given:
        return failed(question.key, f"not answered yet: {question.advice}")
    if given not in choices:
        kind = "one of the words that answer.toml lists" if question.choices else "a kernel of this report"
        return failed(question.key, f"{given!r} is not {kind}")
    if given not in question.right(report):
        return failed(question.key, f"not {given}: {question.advice}")
    return passed(question.key, given)


def right_answers(questions: Collection[Question], found: Any) -> dict[str, str | float]:
    """By key of answer.toml. found: what `right` of the questions takes."""
    right: dict[str, str | float] = {}
    for each in questions:
        if isinstance(each, Number):
            right[each.key] = float(f"{each.right(found):.4g}")
        else:
            right[each.key] = next(iter(each.right(found)))
    return right


@dataclass(frozen=True, slots=True)
class Effect:
    """What the report of the repaired program must show of one kernel."""

    function: str
    metric: Callable[[Report], float]
    bound: float
    what: str
    """its unit in words"""
    faster: float
    """the least ratio of the durations"""
    work: Callable[[Report], float]
    """what the repair must keep, such as the bytes that it reads"""
    least: Callable[[Report], float]
    """the least of it, from the first report"""
    at_least: bool = False
    """the metric must be at least `bound`, not at most"""


def effects(
    source: Source, wanted: Collection[Effect], workspace: Path, answers: Answers
) -> list[GradedCheck]:
    """The check "effect": the second report against the first."""
    given = answers.text("after")
    if not given:
        lacks = next(filter(None, (each.missing() for each in (Need.GPU, Need.NCU, Need.NVCC))), "")
        if lacks:
            return [not_checked("effect", f"{lacks}, so there is no report of the repaired program")]
        text = "profile the repaired program too, and put its report into answer.toml: after"
        return [failed("effect", text)]
    try:
        before = opened(source, named(source, workspace, answers))
        after = opened(source, workspace / given, unchanged=False)
        wrong = _difference(before, after, wanted)
    except (ReportError, ZeroDivisionError) as error:
        wrong = f"{given}: {error}"
    return [failed("effect", wrong) if wrong else passed("effect", _said(before, after, wanted))]


def _difference(before: Report, after: Report, wanted: Collection[Effect]) -> str:
    devices = {report.launches[0].device for report in (before, after)}
    if len(devices) > 1:
        return f"the two reports are of different GPUs: {', '.join(sorted(devices))}"
    for effect in wanted:
        shown = effect.metric(after)
        word = "at least" if effect.at_least else "at most"
        if shown < effect.bound if effect.at_least else shown > effect.bound:
            return f"{effect.function}: {shown:.3g} {effect.what}, the goal is {word} {effect.bound:g}"
        if effect.work(after) < effect.least(before):
            return f"{effect.function} no longer does its work: {effect.work(after):.3g} is too little"
        gain = before.last(effect.function).duration_ns / after.last(effect.function).duration_ns
        if gain < effect.faster:
            return f"{effect.function} is {gain:.2f} times as fast; the goal is {effect.faster:g} times"
    return ""


def _said(before: Report, after: Report, wanted: Collection[Effect]) -> str:
    said = []
    for effect in wanted:
        old, new = (report.last(effect.function).duration_ns / 1e3 for report in (before, after))
        said.append(f"{effect.function} {old:.0f} us before, {new:.0f} us now")
    return "; ".join(said)
