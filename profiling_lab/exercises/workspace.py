# SPDX-License-Identifier: Apache-2.0
"""A learner's own copy of an exercise: made by `start`, graded by `check`."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

from profiling_lab.errors import UsageError
from profiling_lab.exercises import answers, find
from profiling_lab.exercises.exercise import Exercise, Verdict

SOLUTIONS = "solutions"
NOTES = "analysis_notes.md"


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
    """The files of the starter, folders whole, into an existing folder."""
    for name in exercise.starter:
        source = exercise.folder / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
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


def check(folder: Path) -> tuple[Exercise, Verdict]:
    """Grade the copy in `folder`; which exercise it is of stands in its answer.toml."""
    given = answers.read(folder)
    name = given.text("exercise")
    if name is None:
        raise UsageError(f'{given.source} does not say which exercise it answers: exercise = "..."')
    exercise = find(name)
    return exercise, exercise.grade(folder, given)
