# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab exercise`: what a learner types, sees and gets as an exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from exercises.training_trace import training_trace

from profiling_lab.cli import main
from profiling_lab.exercises import catalogue, entries, find, progress, workspace
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
        assert f"E{exercise.number:02d}  {exercise.slug}" in shown and exercise.question in shown


def test_list_says_which_need_is_missing_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "it is not on the PATH" if self is Need.NSYS else "")
    assert main(["exercise", "list"]) == 0
    shown = capsys.readouterr().out
    assert "gpu, nsys*" in shown
    assert "* missing here: nsys (it is not on the PATH)." in shown


def test_list_fits_in_80_columns_with_whole_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["exercise", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for exercise in catalogue():
        (line,) = (line for line in lines if f" {exercise.slug} " in line)
        assert "*" * exercise.entry.stars in line and len(line) <= 80


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


SPELLINGS = (
    "17", "017", "E17", "e17", "python-backtrace", "python_backtrace", "Python Backtrace", "pythonbacktrace",
    "E17-python-backtrace", "E17 python-backtrace", "e17_python_backtrace", "ex01-python-backtrace",
    "05-advanced-nsight/ex01-python-backtrace", "06-advanced-nsight/ex01-python-backtrace/",
)  # fmt: skip


def test_check_takes_every_name_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also from a folder where another exercise was started: its progress does not hide this one."""
    mine, others = tmp_path / "mine", tmp_path / "others"
    others.mkdir()
    monkeypatch.chdir(others)
    assert main(["exercise", "start", "28"]) == 0
    assert main(["exercise", "start", "17", "--to", str(mine / "copy"), "--recorded"]) == 0
    copy = (str(mine / "copy"), str(mine / "copy") + "/", "../mine/copy", "../mine/copy/answer.toml")
    capsys.readouterr()
    for name in (*SPELLINGS, *copy):
        assert progress.copy_for(name).resolve() == mine / "copy", name
    assert main(["exercise", "check", "E17"]) == 1
    assert "E17 python-backtrace: not yet" in capsys.readouterr().out
    assert progress.copy_for("28").resolve() == others / "hidden_synchronisation"


def test_second_start_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "start", "e17", "--to", str(tmp_path / "copy")]) == 0
    (tmp_path / "copy" / "answer.toml").write_text("my work")
    assert main(["exercise", "start", "e17", "--to", str(tmp_path / "copy")]) == 2
    assert (tmp_path / "copy" / "answer.toml").read_text() == "my work"
    assert "nothing was changed" in capsys.readouterr().err


def test_unknown_exercise_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "start", "knitting"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no exercise called 'knitting'" in error and "exercise list" in error


def test_check_of_a_fresh_copy_says_what_is_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["exercise", "start", "e17", "--to", str(tmp_path / "copy")])
    training_trace(tmp_path / "copy" / "run.sqlite")
    form = tmp_path / "copy" / "answer.toml"
    form.write_text(form.read_text().replace('trace = ""', 'trace = "run.sqlite"'))
    capsys.readouterr()
    assert main(["exercise", "check", str(tmp_path / "copy")]) == 1
    shown = capsys.readouterr().out
    assert shown.count("not answered yet") == 5 and "not yet: 6 checks failed" in shown
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


@pytest.mark.parametrize(
    "name",
    [
        "28",
        "E28",
        "e28",
        "hidden-synchronisation",
        "Hidden_Synchronisation",
        "hidden synchronisation",
        "07-bottleneck-clinic/hidden-synchronization",
        "e28_hidden_synchronisation",
    ],
)
def test_every_spelling_leads_to_one_exercise(name: str) -> None:
    assert find(name).number == 28


def test_a_mistyped_name_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "start", "hiden-synchronisaton"]) == 2
    assert "did you mean E28 hidden-synchronisation?" in capsys.readouterr().err


def test_a_planned_exercise_is_said_to_be_planned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = entries()[-1]
    monkeypatch.setattr(type(planned), "is_built", property(lambda each: each != planned))
    assert main(["exercise", "start", str(planned.number)]) == 2
    assert f"{planned.label} ({planned.title}) is planned but does not exist yet" in capsys.readouterr().err


def test_status_shows_the_whole_curriculum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "status"]) == 0
    shown = capsys.readouterr().out
    for each in entries():
        assert each.label in shown and each.aliases[0] in shown
    assert "05-scaling-benchmarks: ready, 3 of 3 exercises" in shown
    for seed in ("01-nsight-systems/ex01-timeline-basics", "05-advanced-nsight/ex08-expert-systems"):
        assert seed in shown


def test_a_learner_is_known_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    assert main(["exercise", "start", "29"]) == 0
    for folder, name in (
        (home, "memory-layout"),
        (home / "memory_layout", None),
        (home / "memory_layout" / "..", None),
        (elsewhere, "e29"),
        (elsewhere, None),
    ):
        monkeypatch.chdir(folder)
        assert main(["exercise", "check", *([name] if name else [])]) == 1
        assert "E29 memory-layout: not yet" in capsys.readouterr().out
    assert main(["exercise", "list", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert {row["key"]: row["state"] for row in rows}["memory-layout"] == "checked 5 times"
    assert main(["exercise", "check", "e30"]) == 2
    assert "you have no copy of E30 slow-convolutions" in capsys.readouterr().err


def test_a_second_start_says_where_the_copy_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["exercise", "start", "29"])
    capsys.readouterr()
    assert main(["exercise", "start", "29"]) == 2
    shown = capsys.readouterr().out
    assert "already exists in memory_layout; nothing was changed" in shown


def test_hints_open_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["exercise", "start", "29"])
    shown = []
    for _ in range(4):
        capsys.readouterr()
        assert main(["exercise", "hint"]) == 0
        shown.append(capsys.readouterr().out)
    assert [text.count("hint ") - text.count("hint of") for text in shown] == [1, 2, 3, 3]
    assert "exercise solution" not in shown[1] and "exercise solution memory-layout" in shown[3]


def test_recorded_start_answers_from_the_recording(tmp_path: Path) -> None:
    assert main(["exercise", "start", "e17", "--recorded", "--to", str(tmp_path / "copy")]) == 0
    assert 'trace = "recorded/demo_h200.sqlite"' in (tmp_path / "copy" / "answer.toml").read_text()


def test_profile_without_a_gpu_says_what_to_do_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "no GPU here")
    main(["exercise", "start", "29", "--to", str(tmp_path / "copy")])
    assert main(["exercise", "profile", str(tmp_path / "copy")]) == 3
    assert "exercise start memory-layout --recorded" in capsys.readouterr().err


def test_profile_records_and_names_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Need, "missing", lambda self: "")
    folder = tmp_path / "copy"
    main(["exercise", "start", "29", "--to", str(folder)])
    (folder / "train.py").write_text("print('trained')\n")
    for number in (1, 2):  # a recording that is there is kept
        assert main(["exercise", "profile", str(folder)]) == 0
        assert (folder / f"run{number}.sqlite").is_file()
        assert f'trace = "run{number}.sqlite"' in (folder / "answer.toml").read_text()
        assert "record -o" in capsys.readouterr().out


def test_repair_judges_the_program_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    main(["exercise", "start", "29", "--to", str(folder)])
    capsys.readouterr()
    assert main(["exercise", "repair", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "is unchanged" in shown and "recording" not in shown
    workspace.copy_solution(find("29"), folder)
    main(["exercise", "repair", str(folder)])
    assert "agree with double precision" in capsys.readouterr().out


def test_next_leads_through_the_exercises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = catalogue()[:2]
    assert main(["exercise", "next"]) == 0
    assert f"exercise start {first.slug}" in capsys.readouterr().out
    main(["exercise", "start", first.slug])
    capsys.readouterr()
    main(["exercise", "next"])
    assert f"{first.label} is started" in capsys.readouterr().out
    progress.note(tmp_path / first.slug.replace("-", "_"), first.slug, passed=True)
    main(["exercise", "next"])
    assert f"exercise start {second.slug}" in capsys.readouterr().out


def test_damaged_progress_loses_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / progress.FILE).write_text("{")
    assert main(["exercise", "list"]) == 0
    assert main(["exercise", "start", "29"]) == 0
    assert main(["exercise", "check", "29"]) == 1


def test_without_a_home_folder_nothing_is_remembered_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("where a folder should be")
    monkeypatch.chdir(tmp_path)
    assert main(["exercise", "start", "29"]) == 0
    assert main(["exercise", "check", "29"]) == 1


def test_an_exercise_without_a_program_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercise", "start", "20", "--to", str(tmp_path / "copy")]) == 0
    for action, hint in (("profile", "no program to record"), ("repair", "no program to repair")):
        assert main(["exercise", action, str(tmp_path / "copy")]) == 2
        error = capsys.readouterr().err
        assert hint in error and error.count("\n") == 1
