# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab exercise`: what a learner types, sees and gets as an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exercises.training_trace import training_trace

from profiling_lab.cli import main
from profiling_lab.exercises import catalogue
from profiling_lab.exercises.exercise import Need


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def no_learner(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches what a learner on this machine has done."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


def test_list_shows_every_exercise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "list"]) == 0
    shown = capsys.readouterr().out
    for exercise in catalogue():
        assert f"E{exercise.number:02d} {exercise.slug}" in shown and exercise.question in shown


def test_list_says_which_need_is_missing_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "it is not on the PATH" if self is Need.NSYS else "")
    assert main(["exercise", "list"]) == 0
    shown = capsys.readouterr().out
    assert "gpu (here), nsys (missing)" in shown
    assert "Missing here: nsys (it is not on the PATH)." in shown


def test_list_as_json_has_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "list", "--format", "json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["schema"] == "profiling-lab/1" and envelope["command"] == "exercise list"
    row = next(row for row in envelope["data"]["rows"] if row["key"] == "python-backtrace")
    assert row["number"] == 17 and "05-advanced-nsight/ex01-python-backtrace" in row["aliases"]


@pytest.mark.parametrize(
    "name", ["python-backtrace", "E17", "e17", "05-advanced-nsight/ex01-python-backtrace"]
)
def test_start_takes_every_name_and_puts_the_copy_here(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["exercise", "start", name]) == 0
    assert (tmp_path / "python_backtrace" / "train_model.py").is_file()
    assert "profiling-lab exercise check python_backtrace" in capsys.readouterr().out


def test_second_start_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "start", "e17", "--to", str(tmp_path / "copy")]) == 0
    (tmp_path / "copy" / "answer.toml").write_text("my work")
    assert main(["exercise", "start", "e17", "--to", str(tmp_path / "copy")]) == 2
    assert (tmp_path / "copy" / "answer.toml").read_text() == "my work"
    assert "nothing was changed" in capsys.readouterr().err


def test_unknown_exercise_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "start", "knitting"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no exercise called 'knitting'" in error and "python-backtrace" in error


def test_check_of_a_fresh_copy_says_what_is_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["exercise", "start", "e17", "--to", str(tmp_path / "copy")])
    training_trace(tmp_path / "copy" / "run.sqlite")
    form = tmp_path / "copy" / "answer.toml"
    form.write_text(form.read_text().replace('trace = ""', 'trace = "run.sqlite"'))
    capsys.readouterr()
    assert main(["exercise", "check", str(tmp_path / "copy")]) == 1
    shown = capsys.readouterr().out
    assert shown.count("not answered yet") == 5 and "not yet: 6 to go" in shown
    assert main(["exercise", "check", str(tmp_path / "copy"), "--format", "json"]) == 1
    rows = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert rows[0] == {"check": "recording", "result": "passed", "message": rows[0]["message"]}


def test_check_outside_of_a_copy_is_unreadable_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exercise", "check", str(tmp_path)]) == 4
    assert "profiling-lab exercise start" in capsys.readouterr().err


def test_solution_prints_notes_and_the_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "solution", "python-backtrace"]) == 0
    shown = capsys.readouterr().out
    assert "a worked answer" in shown
    assert "+++ solved/model.py" in shown and "+        return heavy_layer(" in shown
