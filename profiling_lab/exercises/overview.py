# SPDX-License-Identifier: Apache-2.0
"""The tables of all exercises: for learners (`list`), and the state of the curriculum (`status`)."""

from __future__ import annotations

from profiling_lab.exercises import catalogue, entries
from profiling_lab.exercises.entries import Entry
from profiling_lab.exercises.exercise import Exercise
from profiling_lab.exercises.progress import Progress
from profiling_lab.exercises.workspace import RECORDED
from profiling_lab.report.table import Column, Report, Table, Unit


def missing_needs(exercises: tuple[Exercise, ...]) -> dict[str, str]:
    """The needs of exercises that this machine lacks, with the reason."""
    needs = dict.fromkeys(need for exercise in exercises for need in exercise.needs)
    return {need.value: why for need in needs if (why := need.missing())}


def list_report(exercises: tuple[Exercise, ...], missing: dict[str, str], progress: Progress) -> Report:
    """One row per exercise: its question, its needs, those missing here (`missing`: need -> reason), and the
    learner's progress.
    """
    columns = (
        Column("exercise", "exercise"),
        Column("module", "module"),
        Column("stars", "stars"),
        Column("minutes", "min", Unit.COUNT),
        Column("state", "state"),
        Column("needs", "needs"),
        Column("question", "question"),
    )
    rows, data = [], []
    for exercise in exercises:
        entry = exercise.entry
        met = ", ".join(f"{need} ({'missing' if need in missing else 'here'})" for need in entry.needs)
        copy = progress.copies.get(entry.slug)
        state = copy.state if copy else "new"
        rows.append(
            (
                entry.label,
                entry.module,
                "*" * entry.stars,
                entry.minutes,
                state,
                met or "nothing",
                exercise.question,
            )
        )
        data.append(
            {
                "key": entry.slug,
                "number": entry.number,
                "module": entry.module,
                "title": entry.title,
                "stars": entry.stars,
                "minutes": entry.minutes,
                "state": state,
                "question": exercise.question,
                "needs": list(entry.needs),
                "missing": {need: missing[need] for need in entry.needs if need in missing},
                "aliases": list(entry.aliases),
            }
        )
    return Report("exercise list", {}, (), Table(columns, tuple(rows), len(rows), (), tuple(data)), {})


def status_report() -> Report:
    """One row per exercise of the curriculum, existing or planned, below a summary of the modules."""
    built = {exercise.slug: exercise for exercise in catalogue()}
    everything = entries()
    header = []
    for module in dict.fromkeys(each.module for each in everything):
        mine = [each for each in everything if each.module == module]
        ready = sum(each.slug in built for each in mine)
        word = "ready" if ready == len(mine) else "partial" if ready else "planned"
        header.append(f"{module}: {word}, {ready} of {len(mine)} exercises")
    names = ("exercise", "module", "asked for as", "documentation", "source code", "recordings", "status")
    rows = tuple(_status(each, built.get(each.slug)) for each in everything)
    columns = tuple(Column(name.replace(" ", "_"), name) for name in names)
    return Report("exercise status", {}, tuple(header), Table(columns, rows, len(rows)), {})


def _status(entry: Entry, exercise: Exercise | None) -> tuple[str, ...]:
    if exercise is None:
        return (entry.label, entry.module, entry.aliases[0], "-", "-", "-", "planned")
    code = [name for name in exercise.starter if name.endswith((".py", ".cu", ".sh"))]
    traces = len(list((entry.folder / RECORDED).glob("*.sqlite")))
    status = "ready" if traces else "recording to come"
    return (entry.label, entry.module, entry.aliases[0], "README.md", ", ".join(code), str(traces), status)
