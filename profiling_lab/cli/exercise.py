# SPDX-License-Identifier: Apache-2.0
"""profiling-lab exercise: list, start, check and solution."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from profiling_lab.exercises.exercise import Exercise, Need, Verdict
    from profiling_lab.report.table import Report

HELP = "learn the craft: exercises that are graded from your own recording"
EXAMPLES = """\
  profiling-lab exercise list
  profiling-lab exercise start python-backtrace
  profiling-lab exercise check python_backtrace
  profiling-lab exercise solution python-backtrace"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all exercises, and what this machine lacks for them")
    shared.add_format(listing)

    start = actions.add_parser("start", help="make your own copy of an exercise")
    start.add_argument(
        "name", help="slug (python-backtrace), number (e17) or path (05-advanced-nsight/ex01-...)"
    )
    start.add_argument(
        "--to", type=Path, metavar="FOLDER", help="where to put it (default: here, by its slug)"
    )

    check = actions.add_parser("check", help="grade your copy")
    check.add_argument(
        "folder", type=Path, nargs="?", default=Path(), help="your copy (default: this folder)"
    )
    shared.add_format(check)

    solution = actions.add_parser("solution", help="print the worked answer")
    solution.add_argument("name", help="slug, number or path")


def run(args: argparse.Namespace) -> int:
    actions = {"list": _list, "start": _start, "check": _check, "solution": _solution}
    return actions[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import catalogue
    from profiling_lab.report.table import write

    exercises = catalogue()
    missing = {need.value: why for need in _needs(exercises) if (why := need.missing())}
    write(list_report(exercises, missing), args.format)
    if args.format == "table":
        if missing:
            reasons = "; ".join(f"{name} ({why})" for name, why in missing.items())
            print(f"\nMissing here: {reasons}. The recordings that come with the exercises stand in for it.")
        print("\nBegin with: profiling-lab exercise start NAME")
    return 0


def _needs(exercises: tuple[Exercise, ...]) -> list[Need]:
    """Everything that some exercise needs, each once."""
    return list(dict.fromkeys(need for exercise in exercises for need in exercise.needs))


def list_report(exercises: tuple[Exercise, ...], missing: dict[str, str]) -> Report:
    """One row per exercise: what it asks and needs, and what of that is not here (`missing`: need -> why)."""
    from profiling_lab.report.table import Column, Report, Table

    columns = (Column("exercise", "exercise"), Column("question", "question"), Column("needs", "needs"))
    rows, data = [], []
    for exercise in exercises:
        needs = [need.value for need in exercise.needs]
        met = ", ".join(f"{need} ({'missing' if need in missing else 'here'})" for need in needs)
        rows.append((f"E{exercise.number:02d} {exercise.slug}", exercise.question, met or "nothing"))
        data.append(
            {
                "key": exercise.slug,
                "number": exercise.number,
                "question": exercise.question,
                "needs": needs,
                "missing": {need: missing[need] for need in needs if need in missing},
                "aliases": list(exercise.aliases),
            }
        )
    return Report("exercise list", {}, (), Table(columns, tuple(rows), len(rows), (), tuple(data)), {})


def _start(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import answers, find, workspace

    exercise = find(args.name)
    folder = workspace.start(exercise, args.to or Path(exercise.slug.replace("-", "_")))
    print(f"E{exercise.number:02d} {exercise.slug}: {exercise.question}")
    print(
        f"Your copy is in {folder}. Read README.md there and fill in {answers.FILE}; then let it be graded:"
    )
    print(f"  profiling-lab exercise check {folder}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import workspace
    from profiling_lab.report.table import write

    exercise, verdict = workspace.check(args.folder)
    write(check_report(verdict), args.format)
    if args.format == "table":
        unknown = f"; {len(verdict.not_checked)} could not be checked here" if verdict.not_checked else ""
        outcome = "passed" if verdict.passed else f"not yet: {len(verdict.failed)} to go"
        print(f"\nE{exercise.number:02d} {exercise.slug}: {outcome}{unknown}")
    return 0 if verdict.passed else 1


def check_report(verdict: Verdict) -> Report:
    """One row per check, in the order of the exercise's steps."""
    from profiling_lab.report.table import Column, Report, Table

    columns = (Column("check", "check"), Column("result", "result"), Column("message", ""))
    rows = tuple((check.name, check.status.value, check.message) for check in verdict.checks)
    return Report("exercise check", {}, (), Table(columns, rows, len(rows)), {})


def _solution(args: argparse.Namespace) -> int:
    from profiling_lab.exercises import find, workspace

    print(workspace.worked_answer(find(args.name)))
    return 0
