# SPDX-License-Identifier: Apache-2.0
"""tools/record_attention_exercises.py without a GPU: made files stand in for what it would record."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from exercises.attention_files import MADE, REPAIRED, RUNGS, attention_trace, made_report, made_trace

from profiling_lab.exercises import find
from profiling_lab.exercises.exercise import Exercise

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "record_attention_exercises.py"
UNKNOWN = "launch__waves_per_multiprocessor"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_attention_exercises", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(text: str) -> int:
    lines = (find("flash-attention").folder / "train.py").read_text().splitlines()
    return next(number for number, each in enumerate(lines, 1) if text in each)


@pytest.mark.parametrize("slug", ["flash-attention", *MADE])
def test_its_answers_are_right_and_its_table_is_honest(
    slug: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exercise = find(slug)

    def record(_: Exercise, folder: Path, target: Path, console: list[str]) -> int:
        is_solved = "solution" in target.name
        if slug == "flash-attention":
            attention_trace(target, line, solved=is_solved)
        else:
            made_trace(slug, target, REPAIRED[slug] if is_solved else None)
        return target.stat().st_size

    def report(folder: Path, target: Path, console: list[str]) -> str:
        if slug == "flash-attention":
            made_report(slug, target, RUNGS)
        else:
            made_report(slug, target, REPAIRED[slug] if "solution" in target.name else None)
        return "made"

    monkeypatch.setattr(script, "_record", record)
    monkeypatch.setattr(script, "_report", report)
    monkeypatch.setattr(
        script, "_repair", lambda exercise, console: "result: passed | speed: passed: 3 times"
    )
    folders = {side: tmp_path / side for side in script.SIDES}
    row: dict[str, object] = {}
    script._one(exercise, folders, tmp_path / "out", row)
    assert row["solution's answer"] == "passes" and row["good"] is True
    assert int(str(row["empty answer fails"])) >= 8
    assert "not show the problem" in str(row["solution no longer shows it"])
    assert exercise.recording in (tmp_path / "out" / "recorded" / "console.txt").read_text()
    monkeypatch.setattr(
        script, "_repair", lambda exercise, console: "result: passed | speed: failed: 1.1 times"
    )
    script._one(exercise, folders, tmp_path / "out", row)
    assert not row["good"]


@pytest.mark.parametrize("slug", ["flash-attention", *MADE])
def test_the_worked_answers_have_the_figures_of_the_recordings(slug: str, script: ModuleType) -> None:
    """python tools/record_attention_exercises.py --notes"""
    exercise = find(slug)
    if not (exercise.folder / "recorded" / "starter_h200.csv").is_file():
        pytest.skip("not recorded yet: tools/record_attention_exercises.py does it on a GPU")
    notes = (exercise.folder / "solutions" / "analysis_notes.md").read_text()
    assert script.BEGIN in notes and script.with_figures(exercise, notes) == notes
    assert script.with_figures(exercise, notes.replace("| starter |", "| other |")) == notes


def test_metrics_that_ncu_does_not_know_are_left_out(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ncu").write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{UNKNOWN}*) '
        f'echo "==ERROR== Failed to find metric {UNKNOWN}" > report.csv; exit 1;; esac\n'
        "cp made.csv report.csv\n"
    )
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    folder = tmp_path / "low-occupancy"
    folder.mkdir()
    made_report("low-occupancy", folder / "made.csv")
    text = (find("low-occupancy").folder / "Makefile").read_text()
    (folder / "Makefile").write_text(text.replace("report: libattention.so", "report:"))
    said = script._report(folder, tmp_path / "starter.csv", [])
    assert f"unknown to ncu: ['{UNKNOWN}']" in said
    assert (tmp_path / "starter.csv").read_text().startswith('"ID"')
