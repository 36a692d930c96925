# SPDX-License-Identifier: Apache-2.0
"""A learner's own copy of an exercise: made by `start`, graded by `check`."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from profiling_lab.errors import UsageError
from profiling_lab.exercises import answers, find
from profiling_lab.exercises.exercise import Exercise, Verdict

SOLUTIONS = "solutions"
NOTES = "analysis_notes.md"
README = "README.md"
RECORDED = "recorded"
ASK_FOR_HINTS = "## Hints\n\n`profiling-lab exercise hint` opens one at a time.\n\n"
_NOT_FOR_LEARNERS = shutil.ignore_patterns("__pycache__", "solution_*", "console.txt")
_HINTS = re.compile(r"^## Hints\n.*?(?=^## |\Z)", re.M | re.S)
_HINT = re.compile(r"^\d+\. (.+?)(?=^\d+\. |\Z)", re.M | re.S)


def start(exercise: Exercise, target: Path) -> Path:
    """Copy the starter into `target`, which must not exist or be empty: a learner's work is never
    overwritten.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(
            f"{target} is there already and is not empty; nothing was changed. Give another folder with --to"
        )
    target.mkdir(parents=True, exist_ok=True)
    copy_starter(exercise, target)
    return target


def copy_starter(exercise: Exercise, target: Path) -> None:
    """The files of the starter, folders whole, into an existing folder. The hints stay behind."""
    for name in exercise.starter:
        source = exercise.folder / name
        if name == README:
            text = _HINTS.sub(lambda _: ASK_FOR_HINTS, source.read_text())
            (target / name).write_text(text)
        elif not source.exists():  # no recording has been made of this one yet
            continue
        elif source.is_dir():
            shutil.copytree(source, target / name, ignore=_NOT_FOR_LEARNERS)
        else:
            shutil.copy(source, target / name)


def copy_solution(exercise: Exercise, target: Path) -> None:
    """Lay the worked solution over a copy of the starter."""
    for source in solved_files(exercise):
        shutil.copy(source, target / source.name)


def solved_files(exercise: Exercise) -> list[Path]:
    """The files of the solution that stand for one of the starter's."""
    return [path for path in sorted((exercise.folder / SOLUTIONS).iterdir()) if path.name in exercise.starter]


def worked_answer(exercise: Exercise) -> str:
    """The notes of the solution and what it changes in the starter's code."""
    parts = [(exercise.folder / SOLUTIONS / NOTES).read_text()]
    for path in solved_files(exercise):
        before, after = (
            (folder / path.name).read_text().splitlines(True) for folder in (exercise.folder, path.parent)
        )
        parts.append(
            "".join(difflib.unified_diff(before, after, f"starter/{path.name}", f"solved/{path.name}"))
        )
    return "\n".join(parts)


def hints(exercise: Exercise) -> tuple[str, ...]:
    """The hints of README.md, in the order in which they open."""
    section = _HINTS.search((exercise.folder / README).read_text())
    return tuple(" ".join(text.split()) for text in _HINT.findall(section[0] if section else ""))


def use_trace(folder: Path, trace: str) -> None:
    """Name the recording in the learner's answer.toml; what else stands there stays."""
    path = folder / answers.FILE
    path.write_text(re.sub(r'(?m)^trace = "[^"]*"', f'trace = "{trace}"', path.read_text(), count=1))


def read(folder: Path) -> tuple[Exercise, answers.Answers]:
    """The answers in `folder`, and which exercise they are for: that stands in its answer.toml."""
    given = answers.read(folder)
    name = given.text("exercise")
    if name is None:
        raise UsageError(f'{given.source} does not say which exercise it answers: exercise = "..."')
    return find(name), given


def check(folder: Path) -> tuple[Exercise, Verdict]:
    """Grade all of the copy in `folder`."""
    exercise, given = read(folder)
    return exercise, exercise.grade(folder, given)


def check_repair(folder: Path) -> tuple[Exercise, Verdict]:
    """Grade the changed program alone."""
    exercise, given = read(folder)
    return exercise, Verdict(tuple(exercise.repair(folder, given)))


def record_command(exercise: Exercise, folder: Path) -> tuple[str, ...]:
    """What records the program of the copy: arguments of profiling-lab. A recording that is there is kept:
    the new one gets the next number.
    """
    number = 1
    while (folder / f"run{number}.sqlite").exists():
        number += 1
    return ("record", "-o", f"run{number}.sqlite", *exercise.program)


def record(command: tuple[str, ...], folder: Path) -> tuple[int, Path | None]:
    """Record, and let answer.toml name the recording. Returns the program's exit code, and the recording
    where there is one.
    """
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    status = subprocess.run(
        (sys.executable, "-m", "profiling_lab", *command), cwd=folder, env={**os.environ, "PYTHONPATH": path}
    ).returncode
    recording = folder / command[2]
    if not recording.is_file():
        return status, None
    use_trace(folder, recording.name)
    return status, recording
