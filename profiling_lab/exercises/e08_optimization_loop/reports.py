# SPDX-License-Identifier: Apache-2.0
"""The log of E08: what each round claims, against the reports of ncu before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiling_lab.analysis.ncu.consistency import CYCLES, READ, WRITTEN, contradictions
from profiling_lab.analysis.ncu.report import DURATION, Launch, Report, ReportError, read
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed

PROGRAM, KERNEL = "optimization_loop", "normalize_rows"
MATRIX_BYTES = 32768 * 2048 * 4
READ_FRAC, WRITTEN_FRAC = 0.9, 0.6
"""of the matrix; what is still in the L2 cache at the end is not written yet"""
MOVED_FRAC = 0.1
FASTER_FRAC = 0.02
"""a round that gains less gains nothing"""
SLACK_FRAC = 0.02
TRIVIAL = ("gpu__time_duration", "cycles_elapsed", "cycles_active", "launch__", "device__")
WORDS = ("down", "up")
LEAST_ROUNDS, LEAST_KEPT = 3, 2


@dataclass(frozen=True, slots=True)
class Round:
    """A report of one version of the program."""

    name: str
    report: Report

    @property
    def duration_ns(self) -> float:
        return sum(launch.duration_ns for launch in self.report.launches)

    @property
    def longest(self) -> Launch:
        return max(self.report.launches, key=lambda launch: launch.duration_ns)

    @property
    def is_same_run_as(self) -> tuple[float, ...]:
        return (self.duration_ns, *(launch.metrics.get(CYCLES, 0.0) for launch in self.report.launches))


def opened(path: Path, name: str) -> Round:
    """A version's report. Raises ReportError."""
    report = read(path)
    found = contradictions(report, program=PROGRAM)
    strange = [each.function for each in report.launches if not each.function.startswith(KERNEL)]
    if strange:
        found.append(f"{name} has the kernel {strange[0]}: their names begin with {KERNEL}")
    if len({launch.function for launch in report.launches}) < len(report.launches):
        found.append(f"{name} has several launches of a kernel: profile ./{PROGRAM} 1")
    needs = (DURATION, READ, WRITTEN)
    if not found and not all(launch.has(*needs) for launch in report.launches):
        found.append(f"{name} lacks {', '.join(needs)}: use the command of `exercise profile`")
    if not found:
        for metric, least in ((READ, READ_FRAC), (WRITTEN, WRITTEN_FRAC)):
            total = sum(launch.value(metric) for launch in report.launches)
            if total < least * MATRIX_BYTES:
                text = f"{name}: {total / 1e6:.0f} MB of {metric} cannot be the whole matrix"
                found.append(f"{text} of {MATRIX_BYTES / 1e6:.0f} MB")
    if found:
        raise ReportError(found[0])
    return Round(name, report)


def checks(workspace: Path, recording: Path, answers: Answers, faster: float) -> list[GradedCheck]:
    """The checks "report", "round 1" and so on, "rounds" and "goal"."""
    given = answers.text("trace")
    try:
        first = opened(workspace / given if given else recording, "the report of the starter")
    except ReportError as error:
        reason = "there is no usable report of the starter to compare with"
        return [failed("report", str(error)), not_checked("rounds", reason), not_checked("goal", reason)]
    graded = [passed("report", f"{first.duration_ns / 1e3:.0f} us")]
    best, kept, number, seen = first, 0, 0, {first.is_same_run_as}
    while answers.text(f"round{number + 1}.report"):
        number += 1
        check, after = _round(workspace, answers, number, best, seen)
        graded.append(check)
        if after is None:
            reason = f"round {number} is not right yet"
            return [*graded, not_checked("rounds", reason), not_checked("goal", reason)]
        if _kept(answers, number):
            best, kept = after, kept + 1
    return [*graded, _rounds(number, kept), _goal(first, best, faster)]


def _round(
    workspace: Path, answers: Answers, number: int, before: Round, seen: set[tuple[float, ...]]
) -> tuple[GradedCheck, Round | None]:
    """The check of one round, and its report if the claim is right."""
    check, name = f"round {number}", answers.text(f"round{number}.report") or ""
    try:
        after = opened(workspace / name, name)
    except ReportError as error:
        return failed(check, str(error)), None
    if after.is_same_run_as in seen:
        return failed(check, f"{name} is the report of another round"), None
    devices = {each.report.launches[0].device for each in (before, after)}
    if len(devices) > 1:
        return failed(check, f"the round before ran on another GPU: {', '.join(sorted(devices))}"), None
    seen.add(after.is_same_run_as)
    wrong = _wrong_claim(_claim(answers, number), before, after)
    if wrong:
        return failed(check, wrong), None
    change = 100 * (after.duration_ns / before.duration_ns - 1)
    word = "kept" if _kept(answers, number) else "dropped"
    said = f"{before.duration_ns / 1e3:.0f} us to {after.duration_ns / 1e3:.0f} us ({change:+.0f} %), {word}"
    return passed(check, said), after


def _claim(answers: Answers, number: int) -> Mapping[str, object]:
    here = f"round{number}."
    return {
        "why": answers.text(here + "why"),
        "metric": answers.text(here + "metric"),
        "moves": answers.text(here + "moves"),
        "before": answers.number(here + "before"),
        "after": answers.number(here + "after"),
        "us": answers.number(here + "us"),
        "kept": answers.text(here + "kept"),
    }


def _kept(answers: Answers, number: int) -> bool:
    return answers.text(f"round{number}.kept") == "yes"


def _wrong_claim(claim: Mapping[str, object], before: Round, after: Round) -> str:
    """What is wrong with a round's claim; empty if the reports bear it out."""
    if not claim["why"]:
        return "not answered yet: why, what you change and why it should help"
    metric, moves, kept = (str(claim[key] or "") for key in ("metric", "moves", "kept"))
    if not metric or moves not in WORDS or kept not in ("yes", "no"):
        return 'not answered yet: metric, moves ("down" or "up") and kept ("yes" or "no")'
    if any(word in metric for word in TRIVIAL):
        return (
            f"{metric} is the result or the launch, not the cause: name the counter that you expected to move"
        )
    for part, which in (("before", before), ("after", after)):
        try:
            right = which.longest.value(metric)
        except ReportError as error:
            return str(error)
        if not _close(_number(claim[part]), right):
            return f"{part} is not what {which.name} says of {metric}, in base units"
    if not _close(_number(claim["us"]), after.duration_ns / 1e3):
        return f"us is not the duration in {after.name}, all its kernels together"
    old, new = (which.longest.value(metric) for which in (before, after))
    is_faster = after.duration_ns < (1 - FASTER_FRAC) * before.duration_ns
    if (kept == "yes") != is_faster:
        return "the durations say the opposite of kept: a round is kept if it is faster, and dropped if not"
    is_moved = new < (1 - MOVED_FRAC) * old if moves == "down" else new > (1 + MOVED_FRAC) * old
    if kept == "yes" and not is_moved:
        return f"{metric} did not go {moves}: another reason made this round faster"
    return ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0  # answers are typed; zero is no answer


def _close(given: float, right: float) -> bool:
    return abs(given - right) <= SLACK_FRAC * abs(right)


def _rounds(number: int, kept: int) -> GradedCheck:
    said = f"{number} rounds, {kept} kept"
    if number < LEAST_ROUNDS or kept < LEAST_KEPT:
        return failed("rounds", f"{said}; at least {LEAST_ROUNDS}, of which {LEAST_KEPT} are kept")
    return passed("rounds", said)


def _goal(first: Round, best: Round, faster: float) -> GradedCheck:
    gain = first.duration_ns / best.duration_ns
    old_us, new_us = (each.duration_ns / 1e3 for each in (first, best))
    said = f"{old_us:.0f} us at first, {new_us:.0f} us in {best.name}: {gain:.1f} times"
    if gain < faster:
        return failed("goal", f"{said}; the goal is {faster:g} times")
    return passed("goal", said)
