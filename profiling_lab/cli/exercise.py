# SPDX-License-Identifier: Apache-2.0
"""profiling-lab exercise: list, start, check and solution."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "learn the craft: exercises that are graded from your own recording"
EXAMPLES = """\
  profiling-lab exercise list
  profiling-lab exercise start python-backtrace
  profiling-lab exercise check python_backtrace
  profiling-lab exercise solution python-backtrace"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="all exercises, and what this machine lacks for them")

    start = actions.add_parser("start", help="make your own copy of an exercise")
    start.add_argument("name", help="slug (python-backtrace), number (e17) or path (05-advanced-nsight/ex01-python-backtrace)")
    start.add_argument("--to", type=Path, metavar="FOLDER", help="where to put it (default: the slug, in this folder)")

    check = actions.add_parser("check", help="grade your copy")
    check.add_argument("folder", type=Path, nargs="?", default=Path(), help="your copy (default: this folder)")

    solution = actions.add_parser("solution", help="print the worked answer")
    solution.add_argument("name", help="slug, number or path")


def run(args: argparse.Namespace) -> int:
    actions = {"list": _list, "start": _start, "check": _check, "solution": _solution}
    return actions[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import catalogue

    for exercise in catalogue():
        print(f"E{exercise.number:02d}  {exercise.slug}: {exercise.question}")
        for need in exercise.needs:
            missing = need.missing()
            print(f"     {need.value}: {f'missing ({missing})' if missing else 'here'}")
        if any(need.missing() for need in exercise.needs):
            print("     What is missing is left out of the check, and the recording that comes with the exercise stands in for yours.")
    print("\nBegin with: profiling-lab exercise start NAME")
    return 0


def _start(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import find, workspace

    exercise = find(args.name)
    folder = workspace.start(exercise, args.to or Path(exercise.slug.replace("-", "_")))
    print(f"E{exercise.number:02d} {exercise.slug} is in {folder}: {exercise.question}")
    print(f"Read {folder / 'README.md'}, fill in {folder / 'answer.toml'}, then run: profiling-lab exercise check {folder}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import workspace
    from profiling_lab.exercises.exercise import Status

    exercise, verdict = workspace.check(args.folder)
    marks = {Status.PASSED: "ok  ", Status.FAILED: "no  ", Status.NOT_CHECKED: "?   "}
    width = max(len(check.name) for check in verdict.checks)
    for check in verdict.checks:
        print(f"{marks[check.status]}{check.name:{width}}  {check.message}")
    left_out = f"; {len(verdict.not_checked)} could not be checked here" if verdict.not_checked else ""
    if verdict.passed:
        print(f"\nE{exercise.number:02d} {exercise.slug}: passed{left_out}")
        return 0
    right = sum(check.status is Status.PASSED for check in verdict.checks)
    print(f"\nE{exercise.number:02d} {exercise.slug}: not yet, {right} of {len(verdict.checks)} are right{left_out}")
    return 1


def _solution(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import find, workspace

    exercise = find(args.name)
    print(workspace.worked_answer(exercise))
    return 0
