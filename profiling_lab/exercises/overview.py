# SPDX-License-Identifier: Apache-2.0
"""The tables of all exercises: for learners (`list`), and the state of the curriculum (`status`)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from profiling_lab.exercises import catalogue, entries
from profiling_lab.exercises.entries import Entry
from profiling_lab.exercises.exercise import Exercise
from profiling_lab.exercises.progress import Progress
from profiling_lab.exercises.workspace import RECORDED
from profiling_lab.report.fields import Field, table_of
from profiling_lab.report.table import ALWAYS, FIRST_TO_GO, SPARE, Report, Unit

MISSING_MARK = "*"
"""behind a need that this machine lacks"""


@dataclass(frozen=True, slots=True)
class _Listed:
    """An exercise as a learner sees it."""

    exercise: Exercise
    state: str
    missing: dict[str, str]
    """of all exercises, those needs that this machine lacks, with the reason"""

    @property
    def entry(self) -> Entry:
        return self.exercise.entry

    @property
    def needs(self) -> str:
        marked = (f"{need}{MISSING_MARK}" if need in self.missing else need for need in self.entry.needs)
        return ", ".join(marked) or "nothing"


_LISTED = (
    Field("number", "", value="entry.number", cell=lambda row: f"E{row.entry.number:02d}"),
    # Marked as a path so that a narrow screen does not fold the names.
    Field("key", "exercise", value="entry.slug", is_path=True),
    Field("module", "module", value="entry.module", priority=FIRST_TO_GO),
    Field("title", value="entry.title"),
    Field("stars", "stars", value="entry.stars", cell=lambda row: "*" * row.entry.stars),
    Field("minutes", "min", Unit.COUNT, value="entry.minutes"),
    Field("state", "state", priority=ALWAYS),
    Field("question", "question", value="exercise.question", priority=SPARE),
    Field("needs", "needs", value=lambda row: list(row.entry.needs), cell=lambda row: row.needs),
    Field(
        "missing",
        value=lambda row: {need: row.missing[need] for need in row.entry.needs if need in row.missing},
    ),
    Field("aliases", value=lambda row: list(row.entry.aliases)),
)


@dataclass(frozen=True, slots=True)
class _Status:
    """How far an entry of the curriculum is: its columns, with their titles."""

    exercise: str
    module: str
    asked_for_as: str
    documentation: str = "-"
    source_code: str = "-"
    recordings: str = "-"
    status: str = "planned"


_STATUS = tuple(Field(field.name, field.name.replace("_", " ")) for field in fields(_Status))


def missing_needs(exercises: tuple[Exercise, ...]) -> dict[str, str]:
    """The needs of exercises that this machine lacks, with the reason."""
    needs = dict.fromkeys(need for exercise in exercises for need in exercise.needs)
    return {need.value: why for need in needs if (why := need.missing())}


def list_report(exercises: tuple[Exercise, ...], missing: dict[str, str], progress: Progress) -> Report:
    """One row per exercise: its question, its needs, those missing here (`missing`: need -> reason), and the
    learner's progress.
    """
    states = {slug: copy.state for slug, copy in progress.copies.items()}
    by_module = sorted(exercises, key=lambda each: (each.entry.module, each.entry.number))
    rows = [_Listed(each, states.get(each.entry.slug, "new"), missing) for each in by_module]
    shown = "number key module stars minutes state needs question"
    return Report("exercise list", {}, (), table_of(_LISTED, shown, rows, len(rows)), {})


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
    rows = [_status(each, built.get(each.slug)) for each in everything]
    shown = " ".join(field.key for field in _STATUS)
    return Report("exercise status", {}, tuple(header), table_of(_STATUS, shown, rows, len(rows)), {})


def _status(entry: Entry, exercise: Exercise | None) -> _Status:
    head = (entry.label, entry.module, entry.aliases[0])
    if exercise is None:
        return _Status(*head)
    code = [name for name in exercise.starter if name.endswith((".py", ".cu", ".sh", ".sql"))]
    recorded = entry.folder / RECORDED
    traces = sum(len([*recorded.rglob(kind)]) for kind in ("*.sqlite", "*.sqlite.gz", "*.csv", "*.json.gz"))
    status = "ready" if traces or not exercise.recording else "recording to come"
    return _Status(*head, "README.md", ", ".join(code), str(traces), status)
