# SPDX-License-Identifier: Apache-2.0
"""Grade E31. The right answers are computed from the samples in the learner's own recording."""

from __future__ import annotations

from pathlib import Path

from profiling_lab.errors import LabError
from profiling_lab.exercises import clinic
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.clinic import COMMON_MISTAKES, PROGRAM, Defect, Size
from profiling_lab.exercises.e31_jax_timing.samples import LOOP, compiling_lines, compiling_ns, waiting_lines
from profiling_lab.exercises.entries import entry
from profiling_lab.exercises.exercise import (
    CheckStatus,
    Exercise,
    GradedCheck,
    Mistake,
    failed,
    not_checked,
    passed,
)
from profiling_lab.exercises.suspects import Suspect

ENTRY = entry("jax-timing")
SHARE = Size("share", "the percentage of samples that `profiling-lab lines --host` shows for it", slack=2.0)
DEFECT = Defect(
    compiling_lines,
    planted=(LOOP,),
    behind="function of JAX",
    size=SHARE,
    recording="recorded/starter_cpu.sqlite",
)
COMPILES_AT_MOST_FRAC = 0.25
"""time in which the loop compiles after the repair, of that before"""


def findings(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", "line", "behind", "size", "wait", "wait_share", "explanation"."""
    checks = clinic.findings(DEFECT, ENTRY, workspace, answers)
    if checks[0].status is not CheckStatus.PASSED:
        reason = "there is no usable recording to check it against"
        return [*checks, not_checked("wait", reason), not_checked("wait_share", reason)]
    waits = waiting_lines(_recording(workspace, answers.text("trace")))
    checks = [_of_the_wait(each, answers, waits) for each in checks]
    return [*checks[:-1], *_wait(answers, waits), checks[-1]]


def _recording(workspace: Path, name: str | None) -> Path:
    return workspace / name if name else ENTRY.folder / DEFECT.recording


def _of_the_wait(check: GradedCheck, answers: Answers, waits: list[Suspect]) -> GradedCheck:
    """The line that waits is near the one that compiles: a wrong answer, not an inexact one."""
    is_it = answers.integer("finding.line") in [each.line for each in waits]
    if check.name == "line" and check.status is CheckStatus.FAILED and is_it:
        return failed("line", "this line waits until something is computed; another one costs more")
    return check


def _wait(answers: Answers, waits: list[Suspect]) -> list[GradedCheck]:
    if not waits:
        reason = f"no sample found the loop of {LOOP} waiting: the computation is too fast here"
        return [not_checked("wait", reason), not_checked("wait_share", reason)]
    right, given, share = waits[0], answers.integer("finding.wait_line"), answers.number("finding.wait_share")
    if given is None:
        line = failed("wait", f"not answered yet: [finding] wait_line, in the function {LOOP}")
    elif given == right.line:
        line = passed("wait", f"{right.file} line {given}")
    else:
        line = failed("wait", "this line does not wait for the value of an array")
    if share is None:
        return [line, failed("wait_share", f"not answered yet: [finding] wait_share, {SHARE.what}")]
    if SHARE.fits(share, right.effect):
        return [line, passed("wait_share", f"{share:g}, recomputed {right.effect:.1f}")]
    if SHARE.fits(100 * share, right.effect):
        return [line, failed("wait_share", "write the value in per cent, not as a fraction")]
    return [line, failed("wait_share", f"this recording has another value: {SHARE.what}")]


def repair(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "result", "compilations", "timing" and "after"."""
    from profiling_lab.exercises.e31_jax_timing import repair  # only for grading

    checks = repair.checks(ENTRY.folder / PROGRAM, workspace / PROGRAM)
    return [*checks, _after(workspace, answers)]


def _after(workspace: Path, answers: Answers) -> GradedCheck:
    name = answers.text("fix.after")
    if name is None:
        return not_checked("after", "no recording of the repaired program: [fix] after (step 5)")
    try:
        before = compiling_ns(_recording(workspace, answers.text("trace")))
        after = compiling_ns(workspace / name)
    except LabError as error:
        return failed("after", str(error))
    if before is None or after is None:
        return failed("after", f"a recording has no sample in the function {LOOP}: keep its name")
    said = f"the loop compiles for {after / 1e6:,.0f} ms, {before / 1e6:,.0f} before"
    if after <= COMPILES_AT_MOST_FRAC * before:
        return passed("after", said)
    return failed("after", f"{said}; the goal is at most {100 * COMPILES_AT_MOST_FRAC:g} %")


EXERCISE = Exercise(
    entry=ENTRY,
    question="How long does a step of JAX take, and what fills the rest of the time?",
    starter=("README.md", PROGRAM, "answer.toml", "recorded"),
    findings=findings,
    repair=repair,
    program=(PROGRAM,),
    recording=DEFECT.recording,
    rules=("gap_cause",),
    mistakes=(
        *COMMON_MISTAKES,
        Mistake("the line that waits, instead of the one that compiles", {"finding.line": 81}, "line"),
        Mistake("the model, which is only traced there", {"finding.line": 56}, "line"),
        Mistake("the function that makes values of arrays", {"finding.behind": "ArrayImpl._value"}, "behind"),
        Mistake("a fraction instead of a percentage", {"finding.size": 0.7}, "size"),
        Mistake("the line that reads the clock", {"finding.wait_line": 80}, "wait"),
        Mistake("the line that compiles, which returns at once", {"finding.wait_line": 79}, "wait"),
        Mistake("a fraction of the waiting", {"finding.wait_share": 0.15}, "wait_share"),
        Mistake("the rest of the loop", {"finding.wait_share": 25.0}, "wait_share"),
        Mistake(
            "the recording of the unchanged program as that of the repaired one",
            {"fix.after": "recorded/starter_cpu.sqlite"},
            "after",
        ),
    ),
    record_options=("--sample-hz", "200"),
    look="lines --host",
)
