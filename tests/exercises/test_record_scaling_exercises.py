# SPDX-License-Identifier: Apache-2.0
"""tools/record_scaling_exercises.py without a GPU: the simulated cluster stands in for the programs' runs."""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from exercises import rank_jobs
from exercises.rank_jobs import Buckets, made_communication, made_scaling

from profiling_lab.exercises import answers
from profiling_lab.exercises.e15_multi_gpu_scaling import grade as scaling
from profiling_lab.exercises.e16_communication_overhead import grade as communication
from profiling_lab.exercises.exercise import CheckStatus
from profiling_lab.measure.device import Machine

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = REPO / "tools" / "record_scaling_exercises.py"
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    here = Machine(rank_jobs.GPU, "580.1", "2.11", None, "13.0", "abc", "2026-11-24T12:00:00Z")
    monkeypatch.setattr(module, "machine", lambda device: here)
    monkeypatch.setattr(module, "_sms", lambda facts: 132)
    return module


def runs(folder: Path, arguments: list[str], console: list[str], note: str = "") -> None:
    """What the programs of both exercises would leave in the folder."""
    console.append(f"$ python {' '.join(arguments)}")
    if arguments[0] == scaling.BENCHMARK:
        is_repaired = "all_reduce(pages)" in (folder / scaling.PROGRAM).read_text()
        name = "after" if "-o" in arguments else "scaling"
        assert is_repaired == (name == "after")
        made_scaling(folder, name, rank_jobs.divided if is_repaired else rank_jobs.on_first_rank)
    elif "-o" in arguments:
        made_communication(folder, "second", Buckets(1))
    else:
        made_communication(folder)


def test_both_exercises(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script, "_program", runs)
    monkeypatch.setattr(sys, "argv", ["record", "--out", str(tmp_path / "out")])
    assert script.main() == 0
    out = capsys.readouterr().out
    assert "exercise: E15 multi-gpu-scaling" in out and "good: True" in out and "failed" not in out
    for part in (scaling, communication):
        target = tmp_path / "out" / "exercises" / part.ENTRY.package
        given = answers.read(target / "solutions")
        assert (target / part.RECORDED).is_file()
        more: dict[str, Any] = {"trace": part.RECORDED}
        if part is communication:
            more["prediction.second"] = part.SECOND
        found = part.EXERCISE.findings(target, given.replaced(more))
        assert {check.status for check in found} == {CheckStatus.PASSED}, found
        console = (target / "recorded" / "console.txt").read_text()
        assert "$ profiling-lab ranks starter_h200.rank0.sqlite" in console and str(tmp_path) not in console
        notes = (target / "solutions" / "analysis_notes.md").read_text()
        assert "| answer | on the H200 |" in notes
    lines = [json.loads(line) for line in (tmp_path / "out/results/scaling.jsonl").read_text().splitlines()]
    solved = [each for each in lines if each["metric"] == "efficiency" and each["provider"] == "solution"]
    strong = [each["value"] for each in solved if each["case"] == {
        "exercise": "multi-gpu-scaling", "scaling": "strong", "gpus": 2}]  # fmt: skip
    assert len(strong) == 1 and strong[0] > 0.9
    assert {each["benchmark"] for each in lines} == {"scaling", "communication_overhead", "links"}
    with tarfile.open(tmp_path / "out" / "scaling_exercises.tar.gz") as archive:
        names = archive.getnames()
    assert "results/scaling.jsonl" in names
    assert f"exercises/{scaling.ENTRY.package}/recorded/solution_h200.rank1.sqlite" in names


def test_what_is_wrong_is_said(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A solution that does not scale, and a program that fails."""

    def unrepaired(folder: Path, arguments: list[str], console: list[str], note: str = "") -> None:
        if arguments[0] == communication.BENCHMARK:
            raise RuntimeError("status 1: no NCCL")
        made_scaling(folder, "after" if "-o" in arguments else "scaling")

    monkeypatch.setattr(script, "_program", unrepaired)
    monkeypatch.setattr(sys, "argv", ["record", "--out", str(tmp_path / "out")])
    assert script.main() == 1
    out = capsys.readouterr().out
    assert "the goal is 90 %" in out and "failed: RuntimeError: status 1: no NCCL" in out
    assert (tmp_path / "out" / "scaling_exercises.tar.gz").is_file(), "what there is comes back"


def test_a_program_runs_as_a_learner_runs_it(script: ModuleType, tmp_path: Path) -> None:
    console: list[str] = []
    (tmp_path / "p.py").write_text("import os\nprint(os.path.abspath('x'))\n")
    script._program(tmp_path, ["p.py"], console, "a note")
    assert console == ["$ python p.py    # a note\nx\n"]
    with pytest.raises(RuntimeError, match="status 2"):
        script._program(tmp_path, ["none.py"], console)


def test_unknown_exercises_are_refused(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["record", "--out", "x", "--only", "juggling"])
    with pytest.raises(SystemExit):
        script.main()
