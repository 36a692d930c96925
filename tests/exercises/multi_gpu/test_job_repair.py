# SPDX-License-Identifier: Apache-2.0
"""Programs of several ranks are run and compared on all of them, and recorded into a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from package_root import PACKAGE_ROOT

from profiling_lab.cli import exercise as cli
from profiling_lab.exercises import answers, find, job_repair, workspace
from profiling_lab.exercises.exercise import CheckStatus, Exercise, Need
from profiling_lab.exercises.job_repair import JobGoal
from profiling_lab.measure import local_ranks


def of_size(*values: float) -> Any:
    import torch

    return torch.tensor(values)


def run_of(returned: list[float], ended: Any, began: Any = None) -> Any:
    began = of_size(0.0, 0.0) if began is None else began
    return SimpleNamespace(returned=returned, began={"w": began}, ended={"w": ended})


@pytest.mark.parametrize(
    ("returned", "ended", "hint"),
    [
        ([2.0], (1.0, 1.0), ""),
        ([2.001], (1.1, 0.9), ""),
        ([2.1], (1.0, 1.0), "returns 2.1 at full size, expected 2"),
        ([2.0, 2.0], (1.0, 1.0), "returns 2 values at full size, not 1"),
        ([2.0], (1.5, 0.5), "the parameter w is another one"),
        ([float("nan")], (1.0, 1.0), "returns nan"),
        ([2.0], (float("nan"), 1.0), "the parameter w is another one"),
    ],
)
def test_full_size_runs_are_compared_too(returned: list[float], ended: Any, hint: str) -> None:
    """What a program skips only where it is timed."""
    told = job_repair._apart(run_of([2.0], of_size(1.0, 1.0)), run_of(returned, of_size(*ended)))
    assert (hint in told) if hint else not told


def test_the_race_decides_and_what_differs_there_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter, repaired = tmp_path / "a.py", tmp_path / "b.py"
    starter.write_text("1"), repaired.write_text("2")
    raced: dict[str, Any] = {"seconds": [[0.02, 0.03, 0.022], [0.01, 0.01, 0.01]], "wrong": ""}

    def run(call: str, asked: dict[str, Any], ranks: int, **_: Any) -> Any:
        assert ranks == 2 and (asked["starter"], asked["repaired"]) == (str(starter), str(repaired))
        return ["", ""] if call.endswith(":difference") else [raced, {}]

    monkeypatch.setattr(job_repair.local_ranks, "run", run)
    monkeypatch.setattr(job_repair.local_ranks, "gpus", lambda: 3)
    monkeypatch.setattr(Need, "missing", lambda self: "")

    def judged(faster: float) -> list[tuple[str, CheckStatus, str]]:
        found = job_repair.checks(starter, repaired, JobGoal(faster=faster, steps=2), "ddp")
        return [(check.name, check.status, check.message) for check in found]

    said = "11.00 ms per step before, 5.00 ms after, on 2 GPUs: 2.20 times"
    assert judged(2.1)[1] == ("ddp speed", CheckStatus.PASSED, said)
    assert judged(2.3)[1][1] is CheckStatus.FAILED
    raced["wrong"] = "on rank 1 train returns 3"
    assert judged(1.0) == [("ddp result", CheckStatus.FAILED, "on rank 1 train returns 3")]


@pytest.mark.usefixtures("warm_ranks")
def test_a_race_on_the_cpu_has_times_of_both_programs_on_all_ranks() -> None:
    """With small jobs; the solution computes what the original does."""
    folder = find("multi-gpu-timeline").folder
    asked = {
        "starter": str(folder / "ddp_training.py"),
        "repaired": str(folder / "solutions" / "ddp_training.py"),
        "seeds": [1, 2], "steps": 2, "every": True,
    }  # fmt: skip
    first, second = local_ranks.run("profiling_lab.exercises.job_repair:race", asked, 2, device="cpu")
    assert first == second and first["wrong"] == ""
    assert [len(each) for each in first["seconds"]] == [2, 2] and min(map(min, first["seconds"])) > 0


# Recording.


@pytest.fixture
def started(tmp_path: Path) -> Path:
    return workspace.start(find("multi-gpu-timeline"), tmp_path / "copy")


def record(exercise: Exercise, folder: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]) -> Any:
    """As `exercise profile` does, where the command writes these files."""

    def run(command: tuple[str, ...], cwd: Path, env: dict[str, str]) -> Any:
        for name in files:
            path = cwd / name
            assert (cwd / name.partition("/")[0]).is_dir(), "made before the program runs"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        return SimpleNamespace(returncode=0 if files else 1)

    monkeypatch.setattr(workspace, "subprocess", SimpleNamespace(run=run))
    command = workspace.record_command(exercise, folder)
    return command, *workspace.record(exercise, command, folder)


def test_the_recordings_of_ranks_are_a_new_folder(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = find("multi-gpu-timeline")
    monkeypatch.setattr(workspace.shutil, "which", lambda name: f"/bin/{name}")
    for number in (1, 2):
        files = tuple(f"run{number}/run.rank{rank}.sqlite" for rank in range(2))
        command, status, recording = record(exercise, started, monkeypatch, files)
        assert command == (
            "profiling-lab", "record", "-o", f"run{number}/run.sqlite",
            "torchrun", "--nproc-per-node", "2", "ddp_training.py",
        )  # fmt: skip
        assert (status, recording) == (0, started / f"run{number}")
        assert answers.read(started).text("trace") == f"run{number}"
    assert (started / "run1/run.rank0.sqlite").is_file(), "earlier recordings are kept"


def test_without_torchrun_on_the_path_its_module_starts_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace.shutil, "which", lambda name: None)
    command = workspace.record_command(find("cold-collectives"), Path("nowhere"))
    assert command[4:] == (
        "--sample-python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "cold_collectives.py",
    )  # fmt: skip


def test_a_run_that_records_nothing_leaves_no_folder(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, status, recording = record(find("multi-gpu-timeline"), started, monkeypatch, ())
    assert (status, recording) == (1, None)
    assert not (started / "run1").exists() and answers.read(started).text("trace") is None


def test_a_program_that_records_itself_gets_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise = find("distributed-profiling")
    folder = workspace.start(exercise, tmp_path / "copy")
    files = tuple(f"run1/{name}/run.rank0.sqlite" for name in ("ddp", "fsdp2", "torch"))
    command, status, recording = record(exercise, folder, monkeypatch, files)
    assert command == ("python", "profile_distributed.py", "run1")
    assert (status, recording) == (0, folder / "run1")
    monkeypatch.setattr(Need, "missing", lambda self: "")
    monkeypatch.setattr(workspace, "record", lambda *_: (0, folder / "run1"))
    assert cli._profile(SimpleNamespace(copy=str(folder))) == 0
    shown = capsys.readouterr().out
    assert [f"profiling-lab ranks {folder}/run1/{name}" in shown for name in ("ddp", "torch")] == [True] * 2


def test_without_two_gpus_it_is_said_what_to_do(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Need.TWO_GPUS.missing():
        pytest.skip("there are two GPUs")
    from profiling_lab.cli import main

    assert main(["exercise", "profile", str(started)]) == 3
    assert "exercise start multi-gpu-timeline --recorded" in capsys.readouterr().err


SAYS = """
import os, pathlib, sys
pathlib.Path(f"said.{os.getpid()}").write_text(" ".join((os.environ["RANK"], *sys.argv)))
"""


def test_profile_distributed_starts_both_jobs_and_the_profiler(tmp_path: Path) -> None:
    """With a stand-in for the programs: what each is started with."""
    exercise = find("distributed-profiling")
    folder = workspace.start(exercise, tmp_path / "copy")
    for name in ("train_ddp.py", "train_fsdp.py"):
        (folder / name).write_text(SAYS)
    done = subprocess.run(
        [sys.executable, "profile_distributed.py", "run1"],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = sorted(path.read_text() for path in folder.glob("said.*"))
    started = ("train_ddp.py --steps 11", "train_ddp.py --trace run1/torch", "train_fsdp.py --steps 11")
    assert said == [f"{rank} {arguments}" for rank in range(2) for arguments in started]
