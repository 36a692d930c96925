# SPDX-License-Identifier: Apache-2.0
"""tools/record_exercises.py without a GPU: made recordings stand in for what it would record."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from builders import TraceBuilder
from exercises.clinic_traces import MADE, made_trace

from profiling_lab.exercises import answers, find
from profiling_lab.exercises.clinic import ClinicExercise
from profiling_lab.exercises.exercise import CheckStatus

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "record_exercises.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_exercises", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("slug", MADE)
def test_its_answers_are_right_and_its_table_is_honest(
    slug: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exercise = find(slug)
    assert isinstance(exercise, ClinicExercise)

    def record(program: Path, target: Path, console: list[str]) -> int:
        target.unlink(missing_ok=True)
        if "starter" in target.name:
            made_trace(slug, target)
        else:
            TraceBuilder().launch("fused", 1_000_000, stack="train.py:5 train").write(target)
        return target.stat().st_size

    monkeypatch.setattr(script, "_record", record)
    monkeypatch.setattr(script, "_repair", lambda exercise, console: "passed: 3.00 times")
    out = tmp_path / exercise.entry.package
    row = script._one(exercise, out)
    assert row["good"] and row["check names it"].split(",")[0] in exercise.rules
    assert not row["check on the solution"]
    assert exercise.recording in (out / "recorded" / "console.txt").read_text()
    shutil.copy(out / exercise.recording, tmp_path / "run.sqlite")
    given = answers.read(out / "solutions").replaced({"trace": str(tmp_path / "run.sqlite")})
    assert {check.status for check in exercise.findings(tmp_path, given)} == {CheckStatus.PASSED}
    monkeypatch.setattr(
        script, "_repair", lambda exercise, console: "failed: 1.10 times; the goal is 2 times"
    )
    assert not script._one(exercise, out)["good"]
