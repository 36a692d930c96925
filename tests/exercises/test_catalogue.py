# SPDX-License-Identifier: Apache-2.0
"""The catalogue proves itself: every exercise is complete, its starter fails, its solution passes, its
mistakes are rejected.

What needs a GPU is reported as not checked on machines without one, and is not counted as right or wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.errors import NotEnoughDataError, UnreadableInputError, UsageError
from profiling_lab.exercises import answers, catalogue, entries, find, workspace
from profiling_lab.exercises.exercise import CheckStatus, Exercise, GradedCheck, Grading, Mistake, Need
from profiling_lab.rules import COUNTER_RULES, RULES

EXERCISES = catalogue()
pytestmark = pytest.mark.usefixtures("warm_ranks", "warm_children")
SECTIONS = ("Symptom", "Task", "Steps", "Hints")
NOT_FOR_LEARNERS = {"__init__.py", "grade.py", "repair.py", "solutions", "__pycache__"}
NOT_FOR_LEARNERS |= {
    "made.py",
    "link.py",
    "queries.py",
    "reports.py",
    "samples.py",
    "twin.py",
}  # of E20, E19, E31, E01 ...


def solved(exercise: Exercise, folder: Path) -> answers.Answers:
    workspace.start(exercise, folder)
    workspace.copy_solution(exercise, folder)
    given = answers.read(folder)
    if not (exercise.counters and "after" in given.values):
        return given
    if any(need.missing() for need in (Need.GPU, Need.NCU, Need.NVCC)):
        return given
    (folder / "after.csv").write_bytes(report_of_the_solution(exercise, folder))
    return given.replaced({"after": "after.csv"})


REPORTS: dict[str, bytes] = {}
"""of each exercise: what ncu says of the solution on this GPU, without which the grader is not content"""


def report_of_the_solution(exercise: Exercise, folder: Path) -> bytes:
    if exercise.slug not in REPORTS:
        try:
            _, report = workspace.record(exercise, workspace.record_command(exercise, folder), folder)
        except NotEnoughDataError as error:
            pytest.skip(str(error))
        assert report is not None
        device = {launch.device for launch in ncu_report.read(report).launches}
        if device != {"NVIDIA H200"}:
            pytest.skip(f"the report that comes with the exercise is of an H200, and this GPU is {device}")
        REPORTS[exercise.slug] = report.read_bytes()
    return REPORTS[exercise.slug]


class Noted(Mapping[str, object]):
    """Answers that note which of them were asked for."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self.given = given
        self.asked: dict[str, object] = {}

    def __getitem__(self, key: str) -> object:
        self.asked[key] = self.given.get(key)
        return self.given[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


JUDGED: dict[str, list[tuple[dict[str, object], list[GradedCheck]]]] = {}
"""of each exercise: answers that judging the solution's program asked for, and the verdict"""


def judged_once(exercise: Exercise) -> Exercise:
    """The exercise for the solution's files, which take long to judge: again only where an answer that is
    asked for then is another one.
    """

    def repair(folder: Path, given: answers.Answers) -> list[GradedCheck]:
        known = JUDGED.setdefault(exercise.slug, [])
        for asked, checks in known:
            if all(given.values.get(key) == value for key, value in asked.items()):
                return checks
        noted = Noted(given.values)
        checks = exercise.repair(folder, answers.Answers(noted, given.source))
        known.append((noted.asked, checks))
        return checks

    return replace(exercise, repair=repair)


def skip_without_recording(exercise: Exercise) -> None:
    if exercise.recording and not (exercise.folder / exercise.recording).exists():
        pytest.skip(f"{exercise.label} has not been recorded yet: scripts of tools/ do it on GPUs")


def slug(exercise: Exercise) -> str:
    return exercise.slug


every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=slug)


def test_folders_and_catalogue_are_one_to_one() -> None:
    root = Path(workspace.__file__).parent
    folders = {path.name for path in root.glob("e[0-9]*_*") if (path / "grade.py").is_file()}
    assert folders == {exercise.entry.package for exercise in EXERCISES}
    assert [each.number for each in entries()] == list(range(1, 39))


def test_no_name_leads_to_two_exercises() -> None:
    names = [name for each in entries() for name in each.names]
    assert len(names) == len(set(names))
    built = [name for exercise in EXERCISES for name in exercise.entry.names]
    assert all(find(name) is find(name.upper()) for name in built)


@every_exercise
def test_folder_is_complete_and_has_nothing_unlisted(exercise: Exercise) -> None:
    present = {path.name for path in exercise.folder.iterdir()} - NOT_FOR_LEARNERS
    assert present - {workspace.RECORDED} == set(exercise.starter) - {workspace.RECORDED}
    assert (exercise.folder / "solutions" / workspace.NOTES).stat().st_size > 500
    assert answers.read(exercise.folder).text("exercise") == exercise.slug


@every_exercise
def test_readme_has_symptom_task_and_hints(exercise: Exercise) -> None:
    text = (exercise.folder / "README.md").read_text()
    assert text.startswith(f"# E{exercise.number:02d} {exercise.slug}: ")
    for section in SECTIONS:
        body = re.search(rf"^## {section}\n(.+?)(?=^## |\Z)", text, re.M | re.S)
        assert body and len(body[1].strip()) > 80, f"README.md has no section {section}"
    assert len(text.split()) < 2000, "ten minutes of reading"
    assert set(exercise.rules) <= {rule.name for rule in (*RULES, *COUNTER_RULES)}
    assert all(alias in text for alias in exercise.entry.aliases[:1]), (
        "README.md names the path it was first asked for under"
    )


@every_exercise
def test_untouched_starter_fails(exercise: Exercise, tmp_path: Path) -> None:
    workspace.start(exercise, tmp_path / "copy")
    found, grading = workspace.check(tmp_path / "copy")
    assert found is exercise
    assert not grading.passed and grading.failed


@every_exercise
def test_solution_passes(exercise: Exercise, tmp_path: Path) -> None:
    skip_without_recording(exercise)
    given = solved(exercise, tmp_path / "copy")
    grading = judged_once(exercise).grade(tmp_path / "copy", given)
    assert not grading.failed, grading.failed
    assert grading.passed
    assert all(check.message for check in grading.not_checked), "what was not checked says why"


@pytest.mark.parametrize(
    ("exercise", "mistake"),
    [pytest.param(e, m, id=f"{e.slug}: {m.why}") for e in EXERCISES for m in e.mistakes],
)
def test_mistake_is_rejected_with_a_hint_that_does_not_give_the_answer(
    exercise: Exercise, mistake: Mistake, tmp_path: Path
) -> None:
    skip_without_recording(exercise)
    given = solved(exercise, tmp_path / "copy")
    for name, text in mistake.files.items():
        (tmp_path / "copy" / name).write_text(text)
    graded = exercise if mistake.files else judged_once(exercise)
    grading = graded.grade(tmp_path / "copy", given.replaced(mistake.answer))
    assert {check.name for check in grading.failed} == {mistake.rejected_by}
    hint = grading.failed[0].message
    for key in mistake.answer:
        right = str(given.values[key])
        assert len(right) < 2 or not re.search(rf"(?<!\w){re.escape(right)}(?!\w)", hint), (
            f"{hint!r} gives {right!r} away"
        )


@every_exercise
def test_start_never_overwrites(exercise: Exercise, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty; nothing was changed"):
        workspace.start(exercise, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@every_exercise
def test_learners_get_no_answers(exercise: Exercise, tmp_path: Path) -> None:
    folder = workspace.start(exercise, tmp_path / "copy")
    given = {path.name for path in folder.iterdir()}
    assert given - {workspace.RECORDED} == set(exercise.starter) - {workspace.RECORDED}
    text = (folder / "README.md").read_text()
    assert workspace.hints(exercise) and workspace.ASK_FOR_HINTS in text
    assert not any(hint[:30] in text for hint in workspace.hints(exercise)), "the hints open one at a time"
    recordings = {path.name for path in folder.glob("recorded/*_h?00*")}
    assert not any("solution" in name for name in recordings)
    for script in folder.glob("*.sh"):
        assert script.stat().st_mode & 0o111, f"{script.name} is run as ./{script.name}"


def test_a_folder_that_is_no_copy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInputError, match=r"there is no answer\.toml"):
        workspace.check(tmp_path)
    (tmp_path / "answer.toml").write_text("exercise = ")
    with pytest.raises(UnreadableInputError, match="not valid TOML"):
        workspace.check(tmp_path)
    (tmp_path / "answer.toml").write_text("layer = 'x'")
    with pytest.raises(UsageError, match="does not say which exercise"):
        workspace.check(tmp_path)
    (tmp_path / "answer.toml").write_text("exercise = 'juggling'")
    with pytest.raises(UsageError, match="no exercise called 'juggling'"):
        workspace.check(tmp_path)


def test_answers_are_typed() -> None:
    given = answers.Answers({"text": "x", "empty": "", "line": 3, "share": 4, "flag": True})
    assert (given.text("text"), given.text("empty"), given.text("absent")) == ("x", None, None)
    assert (given.integer("line"), given.number("share")) == (3, 4.0)
    for read, key in (
        (given.text, "line"),
        (given.integer, "text"),
        (given.number, "flag"),
        (given.integer, "flag"),
    ):
        with pytest.raises(UnreadableInputError, match=f"{key} must be"):
            read(key)


def test_a_verdict_without_a_single_pass_is_no_pass() -> None:
    unknown = GradedCheck("speed", CheckStatus.NOT_CHECKED, "no GPU")
    assert not Grading((unknown,)).passed
    assert Grading((unknown, GradedCheck("layer", CheckStatus.PASSED, "right"))).passed
    assert not Grading(
        (GradedCheck("layer", CheckStatus.PASSED, "right"), GradedCheck("line", CheckStatus.FAILED, "no"))
    ).passed


def test_recordings_are_small() -> None:
    for exercise in EXERCISES:
        for path in (exercise.folder / "recorded").rglob("*.*"):
            assert path.stat().st_size < 1_000_000, f"{path.name} is too large to ship"
