# SPDX-License-Identifier: Apache-2.0
"""E19: answers from reports of nsys, also the learner's own, and a gate whose exit code is right."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import REPO
from exercises.readme_commands import run_all

from profiling_lab.exercises import answers, find, workspace
from profiling_lab.exercises.e19_nsys_stats_cli import repair
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck

EXERCISE = find("nsys-stats-cli")
PRINTED = REPO / "tests" / "data" / "nsys_stats"
RECORDED = EXERCISE.folder / "recorded"


def graded(folder: Path, **given: object) -> dict[str, GradedCheck]:
    right = answers.read(EXERCISE.folder / "solutions")
    changes = {key.replace("__", "."): value for key, value in given.items()}
    return {check.name: check for check in EXERCISE.findings(folder, right.replaced(changes))}


def test_the_reports_are_what_nsys_printed() -> None:
    for path in RECORDED.glob("*.csv"):
        kind = ".as_it_is" if path.stem == "cuda_api_sum" else ""
        assert path.read_bytes() == (PRINTED / f"nsys_h200.{path.stem}{kind}.csv").read_bytes()


def test_own_reports_have_answers_of_their_own(tmp_path: Path) -> None:
    """Named as nsys names them. The answers about another recording are wrong."""
    (tmp_path / "mine").mkdir()
    for path in PRINTED.glob("autograd_nvtx_h200.*_sum.csv"):
        shutil.copy(path, tmp_path / "mine" / f"own_{path.name.split('.')[1]}.csv")
    found = graded(tmp_path, reports="mine")
    assert found["reports"].message == "your own"
    assert found["kernels.hottest"].status is found["kernels.all_ms"].status is CheckStatus.FAILED


def test_the_call_that_stands_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for path in RECORDED.glob("*.csv"):
        shutil.copy(path, tmp_path / "mine")
    shutil.copy(PRINTED / "nsys_h200.cuda_api_sum.csv", tmp_path / "mine" / "cuda_api_sum.csv")
    for reports in ("", "mine"):
        assert graded(tmp_path, reports=reports)["calls.sync_ms"].status is CheckStatus.PASSED
        assert graded(tmp_path, reports=reports, calls__sync_ms=64.36)["calls.sync_ms"].status is (
            CheckStatus.FAILED
        )


@pytest.mark.parametrize(
    ("text", "hint"),
    [(None, "no cuda_gpu_kern_sum.csv"), ("", "no rows"), ("a,b\n1,2\n", "other columns")],
)
def test_unusable_reports_are_one_sentence(tmp_path: Path, text: str | None, hint: str) -> None:
    (tmp_path / "mine").mkdir()
    for path in RECORDED.glob("*.csv"):
        shutil.copy(path, tmp_path / "mine")
    target = tmp_path / "mine" / "cuda_gpu_kern_sum.csv"
    target.unlink() if text is None else target.write_text(text)
    found = graded(tmp_path, reports="mine")
    assert found["reports"].status is CheckStatus.FAILED and hint in found["reports"].message
    assert found["kernels.hottest"].status is CheckStatus.NOT_CHECKED


def test_other_units_get_their_own_hint(tmp_path: Path) -> None:
    assert "another unit" in graded(tmp_path, kernels__hottest_ms=38791.3)["kernels.hottest_ms"].message


def test_the_gate_of_the_starter_never_stops(tmp_path: Path) -> None:
    shutil.copy(EXERCISE.folder / repair.FILE, tmp_path)
    statuses = {check.name: check.status for check in repair.checks(tmp_path)}
    assert statuses["gate stops"] is statuses["gate reports bad input"] is CheckStatus.FAILED
    (tmp_path / repair.FILE).unlink()
    assert "there is no gate.py" in repair.checks(tmp_path)[0].message


@pytest.mark.parametrize(
    ("old", "new"),
    [('COLUMN = "Total Time (ns)"', 'COLUMN = "Instances"'), ("* (1 + args.limit / 100)", "+ args.limit")],
)
def test_gates_that_are_wrong_in_two_ways_are_stopped(tmp_path: Path, old: str, new: str) -> None:
    text = (EXERCISE.folder / "solutions" / repair.FILE).read_text()
    assert old in text
    (tmp_path / repair.FILE).write_text(text.replace(old, new))
    assert any(check.status is CheckStatus.FAILED for check in repair.checks(tmp_path))


def test_a_gate_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / repair.FILE).write_text("while True: pass")
    monkeypatch.setattr(repair, "LIMIT_S", 0.01)
    assert "none within" in repair.checks(tmp_path)[0].message


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_all(EXERCISE, tmp_path, monkeypatch)) >= 7
    assert len(workspace.hints(EXERCISE)) == 3
