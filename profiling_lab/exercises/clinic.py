# SPDX-License-Identifier: Apache-2.0
"""Exercises about a training program `train.py` that is slow on one line.

The learner reads from a recording which line it is, its kernel or call, and its share, and then changes the
program. The right answers are computed from the learner's own recording. The planted defect is known here
only to notice a recording of something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from profiling_lab.errors import LabError
from profiling_lab.exercises import program_repair, questions
from profiling_lab.exercises.answers import Answers, is_near
from profiling_lab.exercises.entries import Entry, entry
from profiling_lab.exercises.exercise import (
    CheckStatus,
    Exercise,
    GradedCheck,
    Mistake,
    failed,
    not_checked,
    passed,
)
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.questions import After, TimelineNumber
from profiling_lab.exercises.suspects import Effect, Find, Suspect
from profiling_lab.trace import Trace

STARTER = "recorded/starter_h200.sqlite"
PROGRAM = "train.py"
ALSO_RIGHT_FRAC = 0.5  # another line or name with at least this share of the largest one is right too
NEAR_LINES = 8


@dataclass(frozen=True, slots=True)
class Size:
    """The unit of the effect, and how exact the answer must be."""

    effect: Effect
    what: str
    slack: float = 0.0
    """accepted difference, in the unit of the answer"""
    slack_frac: float = 0.0
    """the same as a fraction of the true value"""

    def fits(self, given: float, truth: float) -> bool:
        return is_near(given, truth, self.slack, self.slack_frac)


SHARE = Size(
    "share", "percentage of all GPU time, as `profiling-lab lines` shows it for this line", slack=2.0
)
KERNELS = Size("kernels", "kernels of this line, as `profiling-lab lines` counts them", slack_frac=0.02)
WAITS = Size("waits", "waits of this line, as `profiling-lab syncs` counts them", slack_frac=0.02)

IDLE = Size(
    "idle",
    "idle ms per step in the first row of this line, as `profiling-lab gaps` shows them",
    slack_frac=0.05,
)


@dataclass(frozen=True, slots=True)
class Defect:
    """The planted defect of an exercise, and how the learner must describe it."""

    find: Find
    planted: tuple[str, ...]
    """the functions that contain the slow line; if another line is at the top, this is another recording"""
    behind: str
    """the kind of name in `[finding] behind`: "kernel", "call" or "memory" """
    size: Size
    least_frac: float = 0.0
    """the least share of the planted functions in everything that counts"""
    also_frac: float = ALSO_RIGHT_FRAC
    """another line with at least this share of the hottest line is right too"""
    recording: str = STARTER
    """the recording that comes with the exercise"""


def truth(defect: Defect, path: Path) -> tuple[Suspect, ...] | str:
    """The lines that are right answers, the hottest first; or the reason why this recording has none."""
    try:
        with Trace.open(path) as trace:
            found = defect.find(trace)
    except LabError as error:
        return f"{error}. `profiling-lab exercise profile` makes a new recording"
    planted = [each for each in found if _is_planted(each.function, defect.planted)]
    everything = sum(each.weight for each in found)
    if (
        not planted
        or found[0] is not planted[0]
        or sum(each.weight for each in planted) < defect.least_frac * everything
    ):
        return (
            "this recording does not show the problem: was it made after the repair, or with another "
            "program? Record the unchanged program"
        )
    return tuple(each for each in found if each.weight >= defect.also_frac * found[0].weight)


def _is_planted(function: str, planted: tuple[str, ...]) -> bool:
    """nsys writes function names without their class, so only the last part of the name is compared."""
    bare = [name.rpartition(".")[2] for name in planted]
    return function in planted or ("." not in function and function in bare)


def findings(defect: Defect, entry: Entry, workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "recording", "line", "behind", "size" and "explanation"."""
    given = answers.text("trace")
    came_with_it = entry.folder / defect.recording
    path = workspace / given if given else came_with_it
    if not given and not path.is_file():
        found: tuple[Suspect, ...] | str = (
            f"{answers.source} has no recording (trace = ...), and none came with the exercise: "
            "`profiling-lab exercise profile` makes one"
        )
    else:
        found = truth(defect, path)
    if isinstance(found, str):
        reason = "there is no usable recording to check it against"
        return [failed("recording", found), *(not_checked(n, reason) for n in ("line", "behind", "size"))]
    is_own = given and path.resolve() != came_with_it.resolve()
    whose = "your own" if is_own else "the one that came with the exercise"
    meant = _meant(answers, found)
    return [
        passed("recording", whose),
        _line(answers, found),
        _behind(defect, answers, meant),
        _size(defect.size, answers, meant),
        explanation(answers),
    ]


def _meant(answers: Answers, found: tuple[Suspect, ...]) -> Suspect:
    """The line in the learner's answer if it is a right one, else the hottest line."""
    file, line = PurePath(answers.text("finding.file") or "").name, answers.integer("finding.line")
    return next((each for each in found if (each.file, each.line) == (file, line)), found[0])


def _line(answers: Answers, found: tuple[Suspect, ...]) -> GradedCheck:
    file, line = answers.text("finding.file"), answers.integer("finding.line")
    if file is None or line is None:
        return _unanswered("line", "[finding] file and line, from the recording")
    name = PurePath(file).name
    if any((each.file, each.line) == (name, line) for each in found):
        return passed("line", f"{name} line {line}")
    if name not in {each.file for each in found}:
        return failed("line", f"{file} is not the file of the hottest line")
    if any(abs(line - each.line) <= NEAR_LINES for each in found):
        return failed("line", "close, but the table shows the executing line: use that one")
    return failed("line", "another line costs more in this recording")


def _behind(defect: Defect, answers: Answers, meant: Suspect) -> GradedCheck:
    given = answers.text("finding.behind")
    if given is None:
        return _unanswered("behind", f"[finding] behind: which {defect.behind}?")
    words = re.findall(r"\w+", given)  # as any table shows them, which may omit the text between them
    if sum(map(len, words)) < 5:
        return failed("behind", f"{given!r} matches too many names: write more of the name")
    pattern = re.compile(".*".join(map(re.escape, words)), re.I)
    whole = [weight for name, weight in meant.names.items() if name.lower() == given.strip().lower()]
    matches = whole or [weight for name, weight in meant.names.items() if pattern.search(name)]
    enough = ALSO_RIGHT_FRAC * max(meant.names.values())
    if not matches:
        return failed("behind", f"no {defect.behind} of this line has {given!r} in its name")
    if max(matches) < enough:
        return failed("behind", f"this line has that {defect.behind}, but another one takes far more time")
    if min(matches) < enough / 4:
        return failed(
            "behind",
            f"{given!r} also matches others of this line that take little time: write more of the name",
        )
    return passed("behind", given)


def _size(size: Size, answers: Answers, meant: Suspect) -> GradedCheck:
    given = answers.number("finding.size")
    if given is None:
        return _unanswered("size", f"[finding] size: {size.what}")
    if size.fits(given, meant.effect):
        return passed("size", f"{given:g}, recomputed {meant.effect:.1f}".replace(".0", ""))
    if size.effect == "share" and size.fits(100 * given, meant.effect):
        return failed("size", "write the value in per cent, not as a fraction")
    return failed("size", f"this recording has another value: {size.what}")


def explanation(answers: Answers) -> GradedCheck:
    """The check that cause and change are written down."""
    missing = [key for key in ("cause", "change") if answers.text(f"fix.{key}") is None]
    if missing:
        return _unanswered("explanation", f"[fix] {' and '.join(missing)} in your own words")
    return passed("explanation", "cause and change are written down; this check does not judge their content")


def _unanswered(name: str, hint: str) -> GradedCheck:
    return failed(name, f"not answered yet: {hint}")


def right_answers(meant: Suspect) -> dict[str, object]:
    """The right answers for [finding]. Those for [timeline] are `questions.right_answers`."""
    return {
        "finding.file": meant.file,
        "finding.line": meant.line,
        "finding.behind": max(meant.names, key=lambda name: meant.names[name]),
        "finding.size": round(meant.effect, 1),
    }


COMMON_MISTAKES = (
    Mistake("the time of another line", {"finding.line": 1}, "line"),
    Mistake("the right line of another file", {"finding.file": "model.py"}, "line"),
    Mistake("a name that does not exist", {"finding.behind": "ampere_sgemm_128x64_tn"}, "behind"),
    Mistake("a letter that every name contains", {"finding.behind": "e"}, "behind"),
    Mistake("another size", {"finding.size": 123456.0}, "size"),
    Mistake("no cause written down", {"fix.cause": ""}, "explanation"),
)


@dataclass(frozen=True, slots=True)
class ClinicExercise(Exercise):
    """An exercise with a planted defect and a goal, which the recording script also needs."""

    defect: Defect | None = None
    goal: Goal | None = None
    questions: tuple[TimelineNumber, ...] = ()
    after: tuple[After, ...] = ()


def exercise(
    name: str,
    question: str,
    defect: Defect,
    goal: Goal,
    rules: tuple[str, ...],
    more_mistakes: tuple[Mistake, ...] = (),
    asked: tuple[TimelineNumber, ...] = (),
    after: tuple[After, ...] = (),
) -> ClinicExercise:
    """`asked`: numbers of the timeline that the learner reads as well. `after`: what a recording of the
    repaired program must show.
    """
    line = entry(name)

    def judge_findings(folder: Path, given: Answers) -> list[GradedCheck]:
        checks = findings(defect, line, folder, given)
        if not asked:
            return checks
        usable = checks[0].status is CheckStatus.PASSED
        trace = given.text("trace")
        path = folder / trace if trace else line.folder / defect.recording
        more = questions.checks(asked, path if usable else None, given)
        return [*checks[:-1], *more, checks[-1]] if usable else [*checks, *more]

    def judge_repair(folder: Path, given: Answers) -> list[GradedCheck]:
        checks = program_repair.checks(line.folder / PROGRAM, folder / PROGRAM, goal)
        return [*checks, *questions.after_checks(after, folder, given, line.folder / defect.recording)]

    return ClinicExercise(
        entry=line,
        question=question,
        starter=("README.md", PROGRAM, "answer.toml", "recorded"),
        findings=judge_findings,
        repair=judge_repair,
        program=(PROGRAM,),
        recording=STARTER,
        rules=rules,
        mistakes=(*COMMON_MISTAKES, *more_mistakes),
        defect=defect,
        goal=goal,
        questions=asked,
        after=after,
    )
