# SPDX-License-Identifier: Apache-2.0
"""E23: what a learner may claim about two recordings, also about a pair of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders import TraceBuilder
from exercises.readme_commands import run_all

from profiling_lab.exercises import answers, find, workspace
from profiling_lab.exercises.e23_comparison_reports.grade import truth
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck

EXERCISE = find("comparison-reports")
MS = 1_000_000


def recording(path: Path, line_ms: float, steps: int = 8) -> Path:
    """Steps of two lines: line 8 takes 1 ms, line 9 what the caller says, with a little jitter."""
    builder = TraceBuilder()
    for step in range(steps):
        begin = builder.now_ns
        jitter = (step % 4) * 10_000
        builder.launch("gemm", 1 * MS, stack="train.py:8 main")
        builder.launch("gelu", int(line_ms * MS) + jitter, stack="train.py:9 main")
        builder.now_ns = max(builder.now_ns, builder.gpu_free_ns[0, 7])
        end = {"end": builder.now_ns, "eventType": 59, "globalTid": builder.tid(1)}
        builder.row("NVTX_EVENTS", start=begin, text="step", **end)
    return builder.write(path)


def own_pair(folder: Path, first: float, second: float, **given: object) -> dict[str, GradedCheck]:
    workspace.start(EXERCISE, folder)
    workspace.copy_solution(EXERCISE, folder)
    recording(folder / "one.sqlite", first)
    recording(folder / "two.sqlite", second)
    own = {"before": "one.sqlite", "after": "two.sqlite", "why": "measured", **given}
    changes = {f"own.{key}": value for key, value in own.items()}
    checks = EXERCISE.grade(folder, answers.read(folder).replaced(changes)).checks
    return {check.name: check for check in checks if check.name.startswith("own")}


def test_a_pair_of_ones_own_is_graded_like_the_others(tmp_path: Path) -> None:
    right = {"verdict": "Slower", "change_ms": 1.0, "worse": "train.py:9", "worse_ms": 1.0}
    checks = own_pair(tmp_path / "copy", 1.0, 2.0, **right)
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    wrong = own_pair(tmp_path / "other", 2.0, 1.0, **right)
    assert {name for name, c in wrong.items() if c.status is CheckStatus.FAILED} == {
        "own verdict", "own change", "own worse", "own better"
    }  # fmt: skip


def test_the_same_program_twice_is_no_change(tmp_path: Path) -> None:
    checks = own_pair(tmp_path / "copy", 1.0, 1.0, verdict="no change")
    assert {check.status for check in checks.values()} == {CheckStatus.PASSED}, checks
    claimed = own_pair(tmp_path / "other", 1.0, 1.0, verdict="slower", change_ms=0.2)
    assert claimed["own verdict"].status is claimed["own change"].status is CheckStatus.FAILED


def test_two_steps_cannot_tell(tmp_path: Path) -> None:
    one, two = recording(tmp_path / "1.sqlite", 1.0, steps=2), recording(tmp_path / "2.sqlite", 3.0, steps=2)
    assert truth(one, two).verdict == "cannot tell"


def test_half_a_pair_and_an_unreadable_one_are_said(tmp_path: Path) -> None:
    assert "needs both" in own_pair(tmp_path / "1", 1.0, 2.0, after="")["own verdict"].message
    assert own_pair(tmp_path / "2", 1.0, 2.0, after="absent.sqlite")["own verdict"].status is (
        CheckStatus.FAILED
    )


def test_answers_follow_the_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs swapped: the answers that were right are wrong."""
    from profiling_lab.exercises.e23_comparison_reports import grade

    shutil.copytree(EXERCISE.folder / "recorded", tmp_path / "recorded")
    for side, other in (("before", "after"), ("after", "before")):
        source = EXERCISE.folder / "recorded" / f"a_{other}_h200.sqlite"
        shutil.copy(source, tmp_path / "recorded" / f"a_{side}_h200.sqlite")
    monkeypatch.setattr(grade, "FOLDER", tmp_path)
    given = answers.read(EXERCISE.folder / "solutions")
    failed = {c.name for c in EXERCISE.findings(tmp_path, given) if c.status is CheckStatus.FAILED}
    assert failed == {"a verdict", "a change", "a worse", "a better"}


def test_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run_all(EXERCISE, tmp_path, monkeypatch)) >= 8
    assert len(workspace.hints(EXERCISE)) == 3
