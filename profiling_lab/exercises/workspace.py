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
from profiling_lab.exercises import answers, find, ncu_profile
from profiling_lab.exercises.exercise import Exercise, Grading

SOLUTIONS = "solutions"
NOTES = "analysis_notes.md"
README = "README.md"
RECORDED = "recorded"
ASK_FOR_HINTS = "## Hints\n\n`profiling-lab exercise hint` shows one at a time.\n\n"
_NOT_FOR_LEARNERS = shutil.ignore_patterns("__pycache__", "solution_*", "console.txt")
_HINTS = re.compile(r"^## Hints\n.*?(?=^## |\Z)", re.M | re.S)
_HINT = re.compile(r"^\d+\. (.+?)(?=^\d+\. |\Z)", re.M | re.S)


def start(exercise: Exercise, target: Path) -> Path:
    """Copy the starter into `target`, which must be empty or must not exist: a learner's work is never
    overwritten.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(
            f"{target} already exists and is not empty; nothing was changed. Choose another folder with --to"
        )
    target.mkdir(parents=True, exist_ok=True)
    copy_starter(exercise, target)
    return target


def copy_starter(exercise: Exercise, target: Path) -> None:
    """Copy the files of the starter, including folders, into an existing folder, without the hints."""
    for name in exercise.starter:
        source = exercise.folder / name
        if name == README:
            text = _HINTS.sub(lambda _: ASK_FOR_HINTS, source.read_text(encoding="utf-8"))
            (target / name).write_text(text, encoding="utf-8")
        elif not source.exists():  # this exercise has no recording yet
            continue
        elif source.is_dir():
            shutil.copytree(source, target / name, ignore=_NOT_FOR_LEARNERS)
        else:
            shutil.copy(source, target / name)


def copy_solution(exercise: Exercise, target: Path) -> None:
    """Copy the solution over a copy of the starter."""
    for source in solved_files(exercise):
        shutil.copy(source, target / source.name)


def solved_files(exercise: Exercise) -> list[Path]:
    """The files of the solution that replace a file of the starter."""
    return [path for path in sorted((exercise.folder / SOLUTIONS).iterdir()) if path.name in exercise.starter]


def worked_answer(exercise: Exercise) -> str:
    """The notes of the solution, its diff to the starter, and the programs that learners have not seen."""
    parts = [(exercise.folder / SOLUTIONS / NOTES).read_text(encoding="utf-8")]
    for path in solved_files(exercise):
        before, after = (
            (folder / path.name).read_text(encoding="utf-8").splitlines(True)
            for folder in (exercise.folder, path.parent)
        )
        parts.append(
            "".join(difflib.unified_diff(before, after, f"starter/{path.name}", f"solved/{path.name}"))
        )
    for name in exercise.sources:
        text = (exercise.folder / SOLUTIONS / name).read_text(encoding="utf-8").splitlines()
        numbered = (f"{number:4} {line}".rstrip() for number, line in enumerate(text, 1))
        parts.append("\n".join((f"--- {name}", *numbered)) + "\n")
    return "\n".join(parts)


def hints(exercise: Exercise) -> tuple[str, ...]:
    """The hints of README.md, in order."""
    section = _HINTS.search((exercise.folder / README).read_text(encoding="utf-8"))
    return tuple(" ".join(text.split()) for text in _HINT.findall(section[0] if section else ""))


def use_trace(folder: Path, trace: str) -> None:
    """Write the name of the recording into the learner's answer.toml, without other changes."""
    path = folder / answers.FILE
    path.write_text(
        re.sub(r'(?m)^trace = "[^"]*"', f'trace = "{trace}"', path.read_text(encoding="utf-8"), count=1)
    )


def read(folder: Path) -> tuple[Exercise, answers.Answers]:
    """The answers in `folder`, and their exercise, which is named in answer.toml."""
    given = answers.read(folder)
    name = given.text("exercise")
    if name is None:
        raise UsageError(f'{given.source} does not say which exercise it belongs to: exercise = "..."')
    return find(name), given


def check(folder: Path) -> tuple[Exercise, Grading]:
    """Grade the whole copy in `folder`."""
    exercise, given = read(folder)
    return exercise, exercise.grade(folder, given)


def check_repair(folder: Path) -> tuple[Exercise, Grading]:
    """Grade only the changed program."""
    exercise, given = read(folder)
    return exercise, Grading(tuple(exercise.repair(folder, given)))


def record_command(exercise: Exercise, folder: Path) -> tuple[str, ...]:
    """The command that records the program of the copy. Existing recordings are kept: the new one gets the
    next number. A program that writes its traces itself is just run.
    """
    in_folder = exercise.ranks > 1
    if exercise.writes and not in_folder:
        return ("python", *exercise.program)
    kind = "" if in_folder else ".csv" if exercise.counters else ".sqlite"
    number = 1
    while (folder / f"run{number}{kind}").exists():
        number += 1
    name = f"run{number}{kind}"
    if exercise.writes:
        return ("python", *exercise.program, name)
    if exercise.counters:
        return ncu_profile.command(exercise.program, exercise.counters, name)
    record = ("profiling-lab", "record", "-o", f"{name}/run.sqlite" if in_folder else name)
    launcher = (*torchrun(), "--nproc-per-node", str(exercise.ranks)) if in_folder else ()
    return (*record, *exercise.record_options, *launcher, *exercise.program)


def torchrun() -> tuple[str, ...]:
    """How `record` starts it; a Python that is not activated has no torchrun on its PATH."""
    return ("torchrun",) if shutil.which("torchrun") else ("-m", "torch.distributed.run")


def record(exercise: Exercise, command: tuple[str, ...], folder: Path) -> tuple[int, Path | None]:
    """Record, and write the recording's name into answer.toml. Returns the program's exit code, and the
    recording if there is one: of several ranks the folder with their files.
    """
    if exercise.counters:
        report = folder / command[command.index("--log-file") + 1]
        status = ncu_profile.run(command, folder, report)
        if report.is_file():
            use_trace(folder, report.name)
        return status, report if report.is_file() else None
    if exercise.ranks > 1:
        name = command[-1] if exercise.writes else Path(command[command.index("-o") + 1]).parent.name
        recording = folder / name
        recording.mkdir()
    else:
        recording = folder / (exercise.writes or command[command.index("-o") + 1])
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    ours = () if exercise.writes else ("-m", "profiling_lab")
    status = subprocess.run(
        (sys.executable, *ours, *command[1:]), cwd=folder, env={**os.environ, "PYTHONPATH": path}
    ).returncode
    if recording.is_dir() and not any(recording.iterdir()):
        recording.rmdir()
    if not recording.exists() or (exercise.writes and status):  # the trace of an earlier run
        return status, None
    use_trace(folder, recording.name)
    return status, recording
