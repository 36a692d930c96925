# SPDX-License-Identifier: Apache-2.0
"""profiling-lab exercise: list, start, hint, profile, check, repair, solution, status, next."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from profiling_lab.exercises.exercise import Exercise, Grading
    from profiling_lab.report.table import Report

HELP = "learn profiling with exercises that are graded from your own recording"
EXAMPLES = """\
  profiling-lab exercise list
  profiling-lab exercise start 28                    # or hidden-synchronisation, or a path of the curriculum
  profiling-lab exercise start 28 --recorded         # without a GPU: use the recording that comes with it
  profiling-lab exercise profile                     # inside your copy, or with its name from anywhere
  profiling-lab exercise hint
  profiling-lab exercise check
  profiling-lab exercise repair
  profiling-lab exercise solution 28"""

NAME = "number (28, E28), slug (hidden-synchronisation) or path (05-advanced-nsight/ex01-...)"
COPY = (
    "your copy: its folder, or the exercise's name (default: the copy that contains this folder, or the last)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=text, description=text)
        added.set_defaults(act=run)
        return added

    shared.add_format(
        action("list", "all exercises, what they need that this machine lacks, and your progress", _list)
    )
    start = action("start", "make your own copy of an exercise", _start)
    start.add_argument("name", help=NAME)
    start.add_argument(
        "--to", type=Path, metavar="FOLDER", help="the folder to create (default: the slug, here)"
    )
    start.add_argument(
        "--recorded", action="store_true", help="use the recording that comes with it; needs no GPU"
    )
    for name, text, run in (
        ("hint", "show the next hint", _hint),
        ("profile", "record the program of your copy, and use this recording for the answers", _profile),
        ("check", "grade your copy: your answers and your changes", _check),
        ("repair", "grade only the changed program: same result, and as fast as required", _repair),
    ):
        added = action(name, text, run)
        added.add_argument("copy", nargs="?", help=COPY)
        if name in ("check", "repair"):
            shared.add_format(added)
    action("solution", "print the solution", _solution).add_argument("name", help=NAME)
    shared.add_format(
        action("status", "the whole curriculum: which exercises exist, and which have a recording", _status)
    )
    action("next", "which exercise to do next", _next)


def run(args: argparse.Namespace) -> int:
    status: int = args.act(args)
    return status


def _list(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import catalogue, overview, progress
    from profiling_lab.report.table import write

    exercises = catalogue()
    missing = overview.missing_needs(exercises)
    write(overview.list_report(exercises, missing, progress.load()), args.format)
    if args.format == "table":
        if missing:
            reasons = "; ".join(f"{name} ({why})" for name, why in missing.items())
            print(f"\n{overview.MISSING_MARK} missing here: {reasons}.")
            print("Use the recordings that come with the exercises instead.")
        print("\nStart with: profiling-lab exercise start NAME")
    return 0


def _status(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import overview
    from profiling_lab.report.table import write

    write(overview.status_report(), args.format)
    return 0


def _start(args: argparse.Namespace) -> int:
    from profiling_lab.errors import NotEnoughDataError
    from profiling_lab.exercises import answers, find, progress, workspace

    exercise = find(args.name)
    if args.recorded and not exercise.recording:
        raise NotEnoughDataError(f"{exercise.label} needs no recording: start it without --recorded")
    if args.recorded and not (exercise.folder / exercise.recording).exists():
        raise NotEnoughDataError(
            f"{exercise.label} has no recording yet: start it without --recorded, on a GPU"
        )
    target = args.to or Path(exercise.slug.replace("-", "_"))
    if args.to is None and (target / answers.FILE).is_file():
        print(
            f"Your copy of {exercise.label} already exists in {target}; nothing was changed. Continue with:"
        )
        print(f"  profiling-lab exercise check {exercise.slug}")
        return 2
    folder = workspace.start(exercise, target)
    if args.recorded:
        workspace.use_trace(folder, exercise.recording)
    progress.note(folder, exercise.slug)
    print(f"{exercise.label}: {exercise.question}")
    print(f"Your copy is in {folder}. Read README.md there and fill in {answers.FILE}. Then grade it:")
    print(f"  profiling-lab exercise check {folder}")
    return 0


def _hint(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import progress, workspace

    folder = progress.copy_for(args.copy)
    exercise, _ = workspace.read(folder)
    hints = workspace.hints(exercise)
    copy = progress.load(folder).copies.get(exercise.slug)
    opened = min((copy.hints if copy else 0) + 1, len(hints))
    progress.note(folder, exercise.slug, hints=opened)
    for number, text in enumerate(hints[:opened], 1):
        print(f"hint {number} of {len(hints)}: {text}")
    if opened == len(hints):
        print(f"That was the last hint. The solution: profiling-lab exercise solution {exercise.slug}")
    return 0


def _profile(args: argparse.Namespace) -> int:
    from profiling_lab.errors import NotEnoughDataError, UsageError
    from profiling_lab.exercises import answers, progress, workspace
    from profiling_lab.exercises.exercise import Need

    folder = progress.copy_for(args.copy)
    exercise, _ = workspace.read(folder)
    if not exercise.program:
        raise UsageError(
            f"{exercise.label} has no program to record: it works on recordings that exist. Put the path of "
            f"one of yours into {answers.FILE}, or use those that come with it"
        )
    if not exercise.recording:
        raise UsageError(f"{exercise.label} needs no recording: README.md in {folder} says what to run")
    for_ncu = (Need.NCU, Need.NVCC) if exercise.counters else ()
    to_run = [need for need in (Need.GPU, Need.TWO_GPUS, Need.JAX, *for_ncu) if need in exercise.needs]
    if missing := next(filter(None, (need.missing() for need in to_run)), ""):
        raise NotEnoughDataError(
            f"{missing}, so there is nothing to record: `profiling-lab exercise start {exercise.slug} "
            "--recorded --to FOLDER` uses the recording that comes with it"
        )
    command = workspace.record_command(exercise, folder)
    print(*command, flush=True)
    status, recording = workspace.record(exercise, command, folder)
    if recording is not None:
        print(f"answer.toml now names {recording.name}. Look at it with:")
        look = "python -m profiling_lab.exercises.ncu_table" if exercise.counters else exercise.look
        program = "" if look.startswith("python ") else "profiling-lab "
        jobs = sorted(path for path in recording.iterdir() if path.is_dir()) if recording.is_dir() else []
        for path in jobs or [recording]:
            print(f"  {program}{look} {path}")
    return status


def _check(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import workspace

    return _graded(args, workspace.check)


def _repair(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import workspace

    return _graded(args, workspace.check_repair)


def _graded(args: argparse.Namespace, grade: Callable[[Path], tuple[Exercise, Grading]]) -> int:
    from profiling_lab.errors import UsageError
    from profiling_lab.exercises import progress
    from profiling_lab.report.table import write

    folder = progress.copy_for(args.copy)
    exercise, grading = grade(folder)
    if not grading.checks:
        raise UsageError(
            f"{exercise.label} has no program to repair: `profiling-lab exercise check` grades all of it"
        )
    if args.action == "check":
        copy = progress.load(folder).copies.get(exercise.slug)
        tries = (copy.checks if copy else 0) + 1
        progress.note(folder, exercise.slug, checks=tries, passed=grading.passed)
    write(check_report(grading, args.action), args.format)
    if args.format == "table":
        unknown = f"; {len(grading.not_checked)} could not be checked here" if grading.not_checked else ""
        outcome = "passed" if grading.passed else f"not yet: {len(grading.failed)} checks failed"
        print(f"\n{exercise.label}: {outcome}{unknown}")
    return 0 if grading.passed else 1


def check_report(grading: Grading, action: str = "check") -> Report:
    """One row per check, in the order of the exercise's steps."""
    from profiling_lab.report.fields import Field, table_of
    from profiling_lab.report.table import Report

    fields = (Field("check", "check", value="name"), Field("result", "result", value="status.value"))
    table = table_of((*fields, Field("message")), "check result message", grading.checks, len(grading.checks))
    return Report(f"exercise {action}", {}, (), table, {})


def _solution(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import find, workspace

    print(workspace.worked_answer(find(args.name)))
    return 0


def _next(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import catalogue, progress

    done = progress.load()
    for exercise in catalogue():
        copy = done.copies.get(exercise.slug)
        if copy is None:
            print(f"{exercise.label}: {exercise.question}")
            print(f"  profiling-lab exercise start {exercise.slug}")
            return 0
        if not copy.passed:
            print(f"{exercise.label} is {copy.state}, in {done.folder_of(exercise.slug)}")
            print(f"  profiling-lab exercise check {exercise.slug}")
            return 0
    print("You have passed every exercise that exists.")
    return 0
