# SPDX-License-Identifier: Apache-2.0
"""Grade E14. The right answers are what the exercise's own benchmark.py does on the simulated GPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import explanation
from profiling_lab.exercises.e14_single_gpu_baseline import repair as judge
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import Exercise, GradedCheck, Mistake, failed, passed
from profiling_lab.exercises.program_repair import load

OTHERS = (
    "different-shapes",
    "too-few-runs",
    "profiler-attached",
    "printing-in-the-time",
    "gradients-recorded",
)
"""errors that a benchmark may have, and this one has not"""
REPORTED_SLACK_FRAC = 0.01
TRUE_SLACK_FRAC = 0.05


@cache
def planted() -> tuple[tuple[str, ...], float, float]:
    """The errors of the starter, the speedup that it prints, and the true one."""
    with judge.device_module() as device:
        program = load(judge.FOLDER / judge.PROGRAM, "starter_benchmark")
        found, intervals = judge.watched(program, device.SimulatedGPU())
        took_s = device.SimulatedGPU().took_s
    return tuple(judge.errors(found, intervals)), found["speedup"], took_s["old"] / took_s["new"]


def findings(_: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "errors", "reported", "true" and "explanation"."""
    present, reported, true = planted()
    return [
        _errors(answers, present),
        _number(
            answers,
            "reported",
            reported,
            REPORTED_SLACK_FRAC,
            "the speedup that the unchanged program prints",
        ),
        _number(answers, "true", true, TRUE_SLACK_FRAC, "the speedup that the repaired program prints"),
        explanation(answers),
    ]


def _errors(answers: Answers, present: tuple[str, ...]) -> GradedCheck:
    given = answers.texts("finding.errors")
    if given is None:
        return failed("errors", "not answered yet: [finding] errors, from the table in README.md")
    if unknown := [each for each in given if each not in (*judge.ERRORS, *OTHERS)]:
        return failed("errors", f"{unknown[0]!r} is not in the table of README.md")
    missing, wrong = set(present) - set(given), set(given) - set(present)
    if missing or wrong:
        return failed(
            "errors", f"{len(wrong)} of your errors are not in this program, {len(missing)} are missing"
        )
    return passed("errors", f"all {len(present)}")


def _number(answers: Answers, name: str, true: float, slack_frac: float, what: str) -> GradedCheck:
    given = answers.number(f"finding.{name}")
    if given is None:
        return failed(name, f"not answered yet: [finding] {name}, {what}")
    if abs(given - true) <= slack_frac * true:
        return passed(name, f"{given:g}, recomputed {true:.2f}")
    return failed(name, f"another value: {what}, on the simulated GPU")


def repair(workspace: Path, _: Answers) -> list[GradedCheck]:
    return judge.checks(workspace)


EXERCISE = Exercise(
    entry=entry("single-gpu-baseline"),
    question="Is this benchmark fair?",
    starter=("README.md", judge.PROGRAM, "device.py", "answer.toml"),
    findings=findings,
    repair=repair,
    program=(judge.PROGRAM,),
    recording="",
    rules=(),
    mistakes=(
        Mistake("only the best known error", {"finding.errors": ["no-synchronisation"]}, "errors"),
        Mistake("every error there is", {"finding.errors": [*judge.ERRORS, *OTHERS]}, "errors"),
        Mistake(
            "an error that is not there", {"finding.errors": [*judge.ERRORS, "profiler-attached"]}, "errors"
        ),
        Mistake("one is missing", {"finding.errors": [*judge.ERRORS[:3], *judge.ERRORS[4:]]}, "errors"),
        Mistake("an error that no one knows", {"finding.errors": ["bad-luck"]}, "errors"),
        Mistake("another number than the program prints", {"finding.reported": 12.0}, "reported"),
        Mistake("the ratio of the fastest calls with different dtypes", {"finding.true": 2.5}, "true"),
        Mistake("slower and faster exchanged", {"finding.true": 0.8}, "true"),
        Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
    ),
)
