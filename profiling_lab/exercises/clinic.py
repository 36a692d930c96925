# SPDX-License-Identifier: Apache-2.0
"""Exercises of one shape: a training program `train.py` that is slow on one line, and what to find out.

The learner reads from a recording which line it is, what stands behind it and how large its part is, then
changes the program. The right answers are computed from the learner's own recording. What was planted is
known here for one purpose only: to notice a recording of something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

from profiling_lab.errors import LabError
from profiling_lab.exercises import program_repair
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.entries import Entry, entry
from profiling_lab.exercises.exercise import Check, Exercise, Mistake, failed, not_checked, passed
from profiling_lab.exercises.program_repair import Goal
from profiling_lab.exercises.suspects import Effect, Find, Suspect
from profiling_lab.trace import Trace

STARTER = "recorded/starter_h200.sqlite"
PROGRAM = "train.py"
ALSO_RIGHT_FRAC = 0.5  # with so much of the largest one, another line or name is right too
NEAR_LINES = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How the size of the effect is asked for, and how exact the answer must be."""

    effect: Effect
    what: str
    slack: float = 0.0
    """accepted difference, in the unit of the answer"""
    slack_frac: float = 0.0
    """the same as a part of the truth"""

    def fits(self, given: float, truth: float) -> bool:
        return abs(given - truth) <= max(self.slack, self.slack_frac * abs(truth))


SHARE = Size("share", "per cent of all GPU time, as `profiling-lab lines` shows it for this line", slack=2.0)
KERNELS = Size("kernels", "kernels of this line, as `profiling-lab lines` counts them", slack_frac=0.02)
WAITS = Size("waits", "waits of this line, as `profiling-lab syncs` counts them", slack_frac=0.02)


@dataclass(frozen=True, slots=True)
class Question:
    """What an exercise asks about the recording of its starter."""

    find: Find
    planted: tuple[str, ...]
    """the functions whose lines may top the list: anything else is another recording"""
    behind: str
    """what `[finding] behind` asks for: "kernel", "call" or "memory" """
    size: Size
    least_frac: float = 0.0
    """of everything that counts, so much must be the planted functions'"""
    also_frac: float = ALSO_RIGHT_FRAC
    """with so much of the heaviest line's weight, another line is right too"""


def truth(question: Question, path: Path) -> tuple[Suspect, ...] | str:
    """The lines that are right answers, the heaviest first; or why this recording has none."""
    try:
        with Trace.open(path) as trace:
            found = question.find(trace)
    except LabError as error:
        return f"{error}. `profiling-lab exercise profile` makes a recording"
    planted = [each for each in found if _is_planted(each.function, question.planted)]
    everything = sum(each.weight for each in found)
    if (
        not planted
        or found[0] is not planted[0]
        or sum(each.weight for each in planted) < question.least_frac * everything
    ):
        return (
            "this recording does not show the problem: was it made after the repair, or of another program? "
            "Record the untouched train.py"
        )
    return tuple(each for each in found if each.weight >= question.also_frac * found[0].weight)


def _is_planted(function: str, planted: tuple[str, ...]) -> bool:
    """nsys writes functions without their class: there the last part of the name has to do."""
    bare = [name.rpartition(".")[2] for name in planted]
    return function in planted or ("." not in function and function in bare)


def findings(question: Question, entry: Entry, workspace: Path, answers: Answers) -> list[Check]:
    """The checks "recording", "line", "behind", "size" and "explanation"."""
    given = answers.text("trace")
    path = workspace / given if given else entry.folder / STARTER
    if not given and not path.is_file():
        found: tuple[Suspect, ...] | str = (
            f"{answers.source} names no recording (trace = ...), and none came with the exercise: "
            "`profiling-lab exercise profile` makes one"
        )
    else:
        found = truth(question, path)
    if isinstance(found, str):
        reason = "there is no usable recording to check it against"
        return [failed("recording", found), *(not_checked(n, reason) for n in ("line", "behind", "size"))]
    whose = (
        "your own" if given and path.resolve() != _resolved(entry) else "the one that came with the exercise"
    )
    meant = _meant(answers, found)
    return [
        passed("recording", whose),
        _line(answers, found),
        _behind(question, answers, meant),
        _size(question.size, answers, meant),
        _explanation(answers),
    ]


def _resolved(entry: Entry) -> Path:
    return (entry.folder / STARTER).resolve()


def _meant(answers: Answers, found: tuple[Suspect, ...]) -> Suspect:
    """The line that the learner speaks of, where it is a right one; else the heaviest."""
    file, line = PurePath(answers.text("finding.file") or "").name, answers.integer("finding.line")
    return next((each for each in found if (each.file, each.line) == (file, line)), found[0])


def _line(answers: Answers, found: tuple[Suspect, ...]) -> Check:
    file, line = answers.text("finding.file"), answers.integer("finding.line")
    if file is None or line is None:
        return _unanswered("line", "[finding] file and line, from the recording")
    name = PurePath(file).name
    if any((each.file, each.line) == (name, line) for each in found):
        return passed("line", f"{name} line {line}")
    if name not in {each.file for each in found}:
        return failed("line", f"{file} is not the file of the line that costs most")
    if any(abs(line - each.line) <= NEAR_LINES for each in found):
        return failed("line", "close, but the stack names the executing line: take it from the table")
    return failed("line", "another line costs more in this recording")


def _behind(question: Question, answers: Answers, meant: Suspect) -> Check:
    given = answers.text("finding.behind")
    if given is None:
        return _unanswered("behind", f"[finding] behind: which {question.behind}?")
    words = re.findall(r"\w+", given)  # as they stand in any table, which may leave out what is between them
    if sum(map(len, words)) < 5:
        return failed("behind", f"{given!r} fits too much: give more of the name")
    pattern = re.compile(".*".join(map(re.escape, words)), re.I)
    matches = [weight for name, weight in meant.names.items() if pattern.search(name)]
    enough = ALSO_RIGHT_FRAC * max(meant.names.values())
    if not matches:
        return failed("behind", f"no {question.behind} of this line has {given!r} in its name")
    if max(matches) < enough:
        return failed("behind", f"this line has that {question.behind}, but another one weighs far more")
    if min(matches) < enough / 4:
        return failed(
            "behind", f"{given!r} also fits others of this line that weigh little: give more of the name"
        )
    return passed("behind", given)


def _size(size: Size, answers: Answers, meant: Suspect) -> Check:
    given = answers.number("finding.size")
    if given is None:
        return _unanswered("size", f"[finding] size: {size.what}")
    if size.fits(given, meant.effect):
        return passed("size", f"{given:g}, recomputed {meant.effect:.1f}".replace(".0", ""))
    if size.effect == "share" and size.fits(100 * given, meant.effect):
        return failed("size", "give it in per cent, not as a fraction")
    return failed("size", f"that is not what this recording says: {size.what}")


def _explanation(answers: Answers) -> Check:
    missing = [key for key in ("cause", "change") if answers.text(f"fix.{key}") is None]
    if missing:
        return _unanswered("explanation", f"[fix] {' and '.join(missing)} in your own words")
    return passed("explanation", "cause and change are written down; whether they convince is yours to judge")


def _unanswered(name: str, hint: str) -> Check:
    return failed(name, f"not answered yet: {hint}")


def right_answers(meant: Suspect) -> dict[str, object]:
    """What a learner who reads the tables well writes under [finding]."""
    return {
        "finding.file": meant.file,
        "finding.line": meant.line,
        "finding.behind": max(meant.names, key=lambda name: meant.names[name]),
        "finding.size": round(meant.effect, 1),
    }


@dataclass(frozen=True, slots=True)
class ClinicExercise(Exercise):
    """An exercise of this shape also knows its question and its goal: the recording script asks for them."""

    asked: Question | None = None
    goal: Goal | None = None


def exercise(
    name: str,
    question: str,
    asked: Question,
    goal: Goal,
    rules: tuple[str, ...],
    more_mistakes: tuple[Mistake, ...] = (),
) -> ClinicExercise:
    line = entry(name)
    mistakes = (
        Mistake("the time of another line", {"finding.line": 1}, "line"),
        Mistake("the right line of another file", {"finding.file": "model.py"}, "line"),
        Mistake("a name that is nowhere", {"finding.behind": "ampere_sgemm_128x64_tn"}, "behind"),
        Mistake("a letter that every name has", {"finding.behind": "e"}, "behind"),
        Mistake("another size", {"finding.size": 123456.0}, "size"),
        Mistake("nothing said about the cause", {"fix.cause": ""}, "explanation"),
    )
    judge_findings: Callable[[Path, Answers], list[Check]] = lambda folder, given: findings(  # noqa: E731
        asked, line, folder, given
    )
    judge_repair: Callable[[Path, Answers], list[Check]] = lambda folder, _: program_repair.checks(  # noqa: E731
        line.folder / PROGRAM, folder / PROGRAM, goal
    )
    return ClinicExercise(
        entry=line,
        question=question,
        starter=("README.md", PROGRAM, "answer.toml", "recorded"),
        findings=judge_findings,
        repair=judge_repair,
        program=(PROGRAM,),
        recording=STARTER,
        rules=rules,
        mistakes=(*mistakes, *more_mistakes),
        asked=asked,
        goal=goal,
    )
