# SPDX-License-Identifier: Apache-2.0
"""E05 to E08: answers from reports of ncu. Reports that were put together or changed fail."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO
from exercises.readme_commands import run_all
from needs import needs
from package_root import PACKAGE_ROOT

from profiling_lab.analysis.ncu.consistency import CYCLES, RATE, READ, contradictions
from profiling_lab.analysis.ncu.report import DURATION, read
from profiling_lab.exercises import answers, find, ncu_questions, workspace
from profiling_lab.exercises.e05_memory_metrics import grade as memory
from profiling_lab.exercises.e06_compute_metrics import grade as compute
from profiling_lab.exercises.e07_roofline_practice import grade as roofline
from profiling_lab.exercises.e08_optimization_loop import grade as loop
from profiling_lab.exercises.exercise import CheckStatus, Exercise, GradedCheck
from profiling_lab.exercises.ncu_table import main as print_table

GRADES = (memory, compute, roofline)
EXERCISES = tuple(find(grade.ENTRY.slug) for grade in (*GRADES, loop))
REPORTS = sorted(path for each in EXERCISES for path in (each.folder / "recorded").glob("*.csv"))
Rows = list[list[str]]


@pytest.fixture(autouse=True)
def recorded(request: pytest.FixtureRequest) -> None:
    """Skips a test of an exercise that has no recording yet."""
    given = getattr(request.node, "callspec", None)
    exercises = [each for each in EXERCISES if given and each.slug in given.id] or EXERCISES[:1]
    if any(not (each.folder / each.recording).is_file() for each in exercises):
        pytest.skip("not recorded yet: tools/record_ncu_exercises.py does it on a GPU")


every_grade = pytest.mark.parametrize("grade", GRADES, ids=lambda grade: grade.ENTRY.slug)
every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.slug)


def solved(exercise: Exercise, folder: Path) -> answers.Answers:
    workspace.start(exercise, folder)
    workspace.copy_solution(exercise, folder)
    return answers.read(folder)


def changed(path: Path, target: Path, change: Callable[[Rows], Any]) -> None:
    """A copy of a report with other cells. Rows 0 and 1 are names and units."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    change(rows)
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    target.write_text(text.getvalue())


def scaled(name: str, factor: float, kernel: str = "") -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        column, named = rows[0].index(name), rows[0].index("Kernel Name")
        for row in rows[2:]:
            if kernel in row[named]:
                row[column] = str(float(row[column].replace(",", "")) * factor)

    return change


def without(column: str) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        place = rows[0].index(column)
        for row in rows:
            del row[place]

    return change


def replaced(column: str, old: str, new: str) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        place = rows[0].index(column)
        for row in rows[2:]:
            row[place] = row[place].replace(old, new)

    return change


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: f"{path.parent.parent.name}/{path.stem}")
def test_recorded_reports_have_no_contradiction(path: Path) -> None:
    report = read(path)
    assert contradictions(report) == []
    assert {launch.device for launch in report.launches} == {"NVIDIA H200"}
    assert path.stat().st_size < 50_000


def last_row_twice(rows: Rows) -> None:
    rows.append(["99", *rows[-1][1:]])


def halved_with_the_cycles(rows: Rows) -> None:
    for name in (DURATION, CYCLES):
        scaled(name, 0.5)(rows)


def first_on_another_gpu(rows: Rows) -> None:
    rows[2][rows[0].index("device__attribute_display_name")] = "Tesla T4"


FORGED = (
    ("a duration that would be nice", scaled(DURATION, 0.5), "contradict"),
    ("a rate from the datasheet", scaled(RATE, 1.4), "contradict"),
    ("fewer bytes", scaled(READ, 0.5), "contradict"),
    ("duration and cycles, but not the rate", halved_with_the_cycles, "contradict"),
    ("the report of another program", replaced("Process Name", "_", "_old_"), "is of the program"),
    ("one row twice", last_row_twice, "same row twice"),
    ("rows of another GPU", first_on_another_gpu, "different GPUs"),
    ("a kernel left out", lambda rows: rows.pop(2), "has no launch"),
    ("a metric left out", without(READ), "no metric"),
    ("another launch", scaled("launch__grid_size", 2.0), "grid size"),
)  # fmt: skip


@pytest.mark.parametrize(("why", "change", "hint"), FORGED, ids=[row[0] for row in FORGED])
@pytest.mark.parametrize("grade", (memory, roofline), ids=lambda grade: grade.ENTRY.slug)
def test_a_forged_report_is_no_evidence(grade: Any, why: str, change: Any, hint: str, tmp_path: Path) -> None:
    given = solved(grade.EXERCISE, tmp_path / "copy")
    path = tmp_path / "copy" / "run1.csv"
    changed(grade.ENTRY.folder / ncu_questions.STARTER, path, change)
    found = grade.findings(tmp_path / "copy", given.replaced({"trace": "run1.csv"}))
    assert found[0].status is CheckStatus.FAILED and hint in found[0].message, found[0]
    assert found[1].status is CheckStatus.NOT_CHECKED


@every_grade
def test_numbers_of_the_recording_are_wrong_for_another_report(grade: Any, tmp_path: Path) -> None:
    """As on a slower GPU: everything takes longer, so an answer that was copied fails."""
    given = solved(grade.EXERCISE, tmp_path / "copy")

    def slower(rows: Rows) -> None:
        for name, factor in ((DURATION, 1.5), (CYCLES, 1.5), (RATE, 1 / 1.5)):
            if name in rows[0]:
                scaled(name, factor)(rows)
        name = "smsp__thread_inst_executed_per_inst_executed.ratio"
        if name in rows[0]:
            scaled(name, 0.9)(rows)

    changed(grade.ENTRY.folder / ncu_questions.STARTER, tmp_path / "copy" / "run1.csv", slower)
    found = grade.findings(tmp_path / "copy", given.replaced({"trace": "run1.csv"}))
    assert found[0] == GradedCheck("report", CheckStatus.PASSED, "your own")
    assert any(check.status is CheckStatus.FAILED for check in found[1:])


@every_grade
def test_the_recording_under_another_name_is_not_the_learners(grade: Any, tmp_path: Path) -> None:
    given = solved(grade.EXERCISE, tmp_path / "copy")
    shutil.copy(grade.ENTRY.folder / ncu_questions.STARTER, tmp_path / "copy" / "run1.csv")
    found = grade.findings(tmp_path / "copy", given.replaced({"trace": "run1.csv"}))
    assert found[0].message == "the one that came with the exercise"


@pytest.mark.parametrize("grade", (memory, compute), ids=lambda grade: grade.ENTRY.slug)
def test_the_second_report_must_show_the_repair(grade: Any, tmp_path: Path) -> None:
    given = solved(grade.EXERCISE, tmp_path)
    before, after = (grade.ENTRY.folder / name for name in (ncu_questions.STARTER, ncu_questions.SOLUTION))
    first = grade.EFFECTS[0].function

    def effect(change: Callable[[Rows], Any], source: Path = after) -> GradedCheck:
        changed(source, tmp_path / "after.csv", change)
        now = given.replaced({"after": "after.csv"})
        return ncu_questions.effects(grade.SOURCE, grade.EFFECTS, tmp_path, now)[0]

    assert effect(lambda rows: None).status is CheckStatus.PASSED
    assert "the goal is" in effect(lambda rows: None, before).message
    slow = [scaled(name, 20.0, first) for name in (DURATION, CYCLES)]
    if RATE in grade.COUNTERS:
        slow.append(scaled(RATE, 1 / 20, first))
    assert "times as fast" in effect(lambda rows: [change(rows) for change in slow]).message
    other = effect(replaced("device__attribute_display_name", "H200", "H100"))
    assert "different GPUs" in other.message
    little = [scaled(name, 0.4, first) for name in (READ, RATE, *memory.LOADS, "dram__bytes_write.sum")]
    names = set(grade.COUNTERS)

    def less(rows: Rows) -> None:
        for name, change in zip((READ, RATE, *memory.LOADS, "dram__bytes_write.sum"), little, strict=True):
            if name in names:
                change(rows)

    assert "no longer does its work" in effect(less).message


def test_a_report_of_the_repaired_program_is_not_the_first(tmp_path: Path) -> None:
    given = solved(memory.EXERCISE, tmp_path)
    shutil.copy(memory.ENTRY.folder / ncu_questions.SOLUTION, tmp_path / "run2.csv")
    found = memory.findings(tmp_path, given.replaced({"trace": "run2.csv"}))
    assert "no report of the unchanged program" in found[0].message


def test_rounds_are_borne_out_by_their_reports(tmp_path: Path) -> None:
    given = solved(loop.EXERCISE, tmp_path)
    assert {check.status for check in loop.findings(tmp_path, given)} == {CheckStatus.PASSED}
    last = max(int(path.stem[5]) for path in (loop.ENTRY.folder / "recorded").glob("round*.csv"))
    path = tmp_path / "forged.csv"
    recorded = loop.ENTRY.folder / "recorded" / f"round{last}_h200.csv"

    def told(change: Callable[[Rows], Any], **more: object) -> str:
        changed(recorded, path, change)
        now = given.replaced({f"round{last}.report": "forged.csv"} | more)
        return next(check.message for check in loop.findings(tmp_path, now) if check.name == f"round {last}")

    assert "contradict" in told(scaled(DURATION, 0.5))
    less = [scaled(name, 0.5) for name in (READ, "dram__bytes_write.sum", RATE)]
    assert "cannot be the whole matrix" in told(lambda rows: [change(rows) for change in less])
    assert "names begin with" in told(replaced("Kernel Name", "normalize", "copy"))
    assert "another GPU" in told(replaced("device__attribute_display_name", "H200", "H100"))
    assert "no report" in next(
        check.message
        for check in loop.findings(tmp_path, given.replaced({"round1.report": "gone.csv"}))
        if check.name == "round 1"
    )


@every_exercise
def test_commands_of_the_readme_work(
    exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(run_all(exercise, tmp_path, monkeypatch)) >= 4
    assert len(workspace.hints(exercise)) == 3


def test_worked_answers_are_what_the_recording_says() -> None:
    """answer.toml, the tables of the notes and the figure: python tools/ncu_solutions.py writes them."""
    done = subprocess.run(
        [sys.executable, REPO / "tools" / "ncu_solutions.py", "--check"],
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_profile_command_is_what_makes_the_recording(tmp_path: Path) -> None:
    workspace.start(memory.EXERCISE, tmp_path / "copy")
    command = workspace.record_command(memory.EXERCISE, tmp_path / "copy")
    assert command[0] == "ncu" and command[-2:] == ("./memory_bandwidth", "1") and "run1.csv" in command
    wanted = command[command.index("--metrics") + 1].split(",")
    recorded = read(memory.ENTRY.folder / ncu_questions.STARTER).launches[0]
    assert set(memory.COUNTERS) <= set(wanted) and recorded.has(*memory.COUNTERS)
    (tmp_path / "copy" / "run1.csv").touch()
    assert "run2.csv" in workspace.record_command(memory.EXERCISE, tmp_path / "copy")


def test_the_table_prints_launches_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(memory.ENTRY.folder / ncu_questions.STARTER)
    assert print_table([path, "scale_grid"]) == 0
    out = capsys.readouterr().out
    assert "scale_grid" in out and "flip_tiles" not in out and DURATION in out
    assert print_table([path, "gather"]) == 4 and "it has scale_field" in capsys.readouterr().err
    assert print_table([]) == print_table([path, "--no-such-option"]) == 2
    assert print_table([path, str(memory.ENTRY.folder / ncu_questions.SOLUTION), "scale_grid"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].split()[1:] == [
        "starter_h200.csv",
        "1",
        "scale_grid",
        "solution_h200.csv",
        "1",
        "scale_grid",
    ]
    sectors = next(row.split() for row in rows if row.startswith(memory.LOADS[0]))
    assert int(sectors[1].replace(",", "")) == 8 * int(sectors[2].replace(",", ""))
    assert print_table([path, "--all"]) == 0 and "launch__grid_size" in capsys.readouterr().out


def test_the_figure_shows_every_kernel_of_the_recording() -> None:
    path = roofline.ENTRY.folder / "solutions" / "roofline_h200.svg"
    if not path.is_file():
        pytest.skip("not recorded yet: tools/record_ncu_exercises.py does it on a GPU")
    figure = path.read_text()
    assert all(f'id="{name}"' in figure for name in (*roofline.PLACED, "roof"))


def test_where_ncu_may_not_read_counters_profile_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profiling_lab.errors import NotEnoughDataError
    from profiling_lab.exercises import ncu_profile

    fake = tmp_path / "ncu"
    fake.write_text('#!/bin/sh\necho "==ERROR== ERR_NVGPUCTRPERM" > run1.csv\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NotEnoughDataError, match="profiling-lab doctor"):
        ncu_profile.run(("ncu",), tmp_path, tmp_path / "run1.csv")
    fake.write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "run1.csv").unlink()
    with pytest.raises(NotEnoughDataError, match="no report"):
        ncu_profile.run(("ncu",), tmp_path, tmp_path / "run1.csv")
    (tmp_path / "Makefile").write_text("all:\n\texit 3\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotEnoughDataError, match="make is not installed"):
        ncu_profile.run(("ncu",), tmp_path, tmp_path / "run1.csv")


@pytest.mark.gpu
@every_grade
def test_profile_makes_a_report_that_can_be_graded(grade: Any, tmp_path: Path) -> None:
    """make, ncu, and the answers that follow from this GPU's own numbers."""
    assert needs("ncu") and needs("nvcc")
    folder = workspace.start(grade.EXERCISE, tmp_path / "copy")
    status, path = workspace.record(grade.EXERCISE, workspace.record_command(grade.EXERCISE, folder), folder)
    assert status == 0 and path is not None
    report = read(path)
    right = {
        each.key: found if isinstance(found := each.right(report), float) else sorted(found)[0]
        for each in grade.QUESTIONS
    }
    checks = grade.findings(
        folder, answers.read(folder).replaced(right | {"fix.cause": "x", "fix.change": "y"})
    )
    assert checks[0] == GradedCheck("report", CheckStatus.PASSED, "your own")
    assert all(check.status is CheckStatus.PASSED for check in checks), checks
