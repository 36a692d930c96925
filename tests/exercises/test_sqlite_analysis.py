# SPDX-License-Identifier: Apache-2.0
"""E20: queries are judged by their rows, on recordings that the learner has not seen."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from builders import TraceBuilder
from exercises.readme_commands import run_all

from profiling_lab.exercises import answers, find, workspace
from profiling_lab.exercises.e20_sqlite_analysis import grade
from profiling_lab.exercises.e20_sqlite_analysis.made import made
from profiling_lab.exercises.e20_sqlite_analysis.queries import QueryError, Rows, rows_of
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck
from profiling_lab.trace import Trace

EXERCISE = find("sqlite-analysis")
every_question = pytest.mark.parametrize("question", grade.QUERIES, ids=lambda each: each.name)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = workspace.start(EXERCISE, tmp_path / "copy")
    workspace.copy_solution(EXERCISE, folder)
    return folder


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return made(tmp_path / "made.sqlite", seed=1)


def checks(folder: Path, trace: str = "") -> dict[str, GradedCheck]:
    given = answers.read(folder).replaced({"trace": trace})
    return {check.name: check for check in EXERCISE.grade(folder, given).checks}


def truth(question: grade.Query, path: Path) -> Rows:
    with Trace.open(path) as trace:
        return question.truth(trace)


@every_question
def test_rows_copied_from_one_recording_fail_on_the_next(question: grade.Query, copy: Path) -> None:
    names = (*question.key, *question.values)
    rows = truth(question, EXERCISE.folder / EXERCISE.recording)
    quoted = [[repr(row[name]) for name in names] for row in rows]
    selects = [
        "SELECT " + ", ".join(f"{value} AS {name}" for value, name in zip(row, names, strict=True))
        for row in quoted
    ]
    (copy / question.file).write_text(" UNION ALL ".join(selects))
    check = checks(copy)[question.name]
    assert check.status is CheckStatus.FAILED and "a recording of nsys" in check.message


@every_question
@pytest.mark.parametrize("seed", range(5))
def test_the_query_of_the_starter_is_wrong_on_a_made_recording(
    question: grade.Query, seed: int, tmp_path: Path
) -> None:
    path = made(tmp_path / "made.sqlite", seed)
    right = truth(question, path)
    assert len(right) > 1
    for folder, is_wrong in ((EXERCISE.folder, True), (EXERCISE.folder / "solutions", False)):
        found = rows_of((folder / question.file).read_text(), path)
        assert bool(grade.difference(question, found, right)) is is_wrong


def test_a_recording_of_nsys_is_a_recording_of_ones_own(copy: Path) -> None:
    assert {c.status for c in checks(copy, str(grade.OF_NSYS)).values()} == {CheckStatus.PASSED}
    assert checks(copy, str(grade.OF_NSYS))["recording"].message == "your recording"


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("DELETE FROM StringIds", "only SELECT"),
        ("ATTACH 'other.sqlite' AS other", "only SELECT"),
        ("PRAGMA writable_schema = 1", "only SELECT"),
        ("CREATE TEMP VIEW v AS SELECT 1", "only SELECT"),
        ("SELECT load_extension('x')", "not authorized|no such function"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT 1 AS a, 2 AS a", "same name"),
        ("SELECT x FROM StringIds", "no such column"),
        ("", "no SELECT"),
    ],
)
def test_anything_but_one_select_is_refused_and_changes_nothing(sql: str, hint: str, recording: Path) -> None:
    before = recording.read_bytes()
    with pytest.raises(QueryError, match=hint):
        rows_of(sql, recording)
    assert recording.read_bytes() == before and not (recording.parent / "other.sqlite").exists()


def test_a_query_that_does_not_end_is_stopped(recording: Path) -> None:
    with pytest.raises(QueryError, match="did not end within 0 s"):
        rows_of(ENDLESS, recording, limit_s=0)
    assert rows_of("SELECT count(*) AS n FROM StringIds", recording)


def test_too_many_rows_are_refused(recording: Path) -> None:
    cross = "SELECT 1 AS x FROM CUPTI_ACTIVITY_KIND_KERNEL a, CUPTI_ACTIVITY_KIND_KERNEL b"
    with pytest.raises(QueryError, match="more than 100,000 rows"):
        rows_of(cross, recording)


def test_the_right_numbers_are_not_in_the_message(recording: Path) -> None:
    question = grade.QUERIES[0]
    right = truth(question, recording)
    wrong = [{**row, "total_ns": 1} for row in right]
    text = grade.difference(question, wrong, right)
    assert "total_ns is wrong in" in text and not any(str(row["total_ns"]) in text for row in right)
    for rows, hint in (
        ([{"name": "x"}], "the columns must be"),
        (right[1:], "1 are missing"),
        ([*right, right[0]], "several rows with the same name"),
        ([*right, {**right[0], "name": "other"}], "should not be there"),
        ([], "are missing"),
    ):
        assert hint in grade.difference(question, rows, right)


def test_recordings_that_cannot_be_asked_are_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "text.sqlite").write_text("no database")
    builder = TraceBuilder()
    builder.launch("gemm", 1000)
    builder.write(copy / "kernels_only.sqlite")
    with sqlite3.connect(copy / "kernels_only.sqlite") as file:
        file.execute("DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_MEMCPY")
    for name, hint in (
        ("absent.sqlite", "no file absent.sqlite"),
        ("text.sqlite", "text.sqlite"),
        ("kernels_only.sqlite", "CUPTI_ACTIVITY_KIND_MEMCPY"),
    ):
        found = checks(copy, name)
        assert found["recording"].status is CheckStatus.FAILED and hint in found["recording"].message
        assert found["gaps"].status is CheckStatus.NOT_CHECKED


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_all(EXERCISE, tmp_path, monkeypatch)) >= 8
    assert len(workspace.hints(EXERCISE)) == 3
