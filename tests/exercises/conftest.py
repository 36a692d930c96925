# SPDX-License-Identifier: Apache-2.0
"""No test touches what a learner on this machine has done."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm_torch

from profiling_lab.exercises import child_process
from profiling_lab.exercises.exercise import Need
from profiling_lab.measure import local_ranks


@pytest.fixture(autouse=True)
def no_learner(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    return state


@pytest.fixture
def warm_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grader's child is a fork of a process that has imported torch. On a GPU it is one of its own."""
    if not Need.GPU.missing():
        return

    def run(command: list[str], *, cwd: Path, **_: Any) -> subprocess.CompletedProcess[str]:
        (folder := tmp_path / "child").mkdir(exist_ok=True)
        (folder / "child.py").write_text(command[2])
        environment = {**os.environ, "PYTHONPATH": str(cwd)}
        return warm_torch.run(["child.py", *command[3:]], folder, environment)

    stand_in = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(child_process, "subprocess", stand_in)


@pytest.fixture
def warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts ranks is a fork of a process that has imported torch. On GPUs it is one of its own."""
    if not Need.GPU.missing():
        return

    def ended(folder: str, limit_s: float) -> tuple[int, str]:
        script = Path(folder, "start.py")
        script.write_text(local_ranks._START)
        environment = {**os.environ, "PYTHONPATH": _with_root(os.environ.get("PYTHONPATH", ""))}
        done = warm_torch.run([str(script), folder], Path(folder), environment)
        return done.returncode, done.stdout + done.stderr

    monkeypatch.setattr(local_ranks, "_ended", ended)


def _with_root(path: str) -> str:
    root = str(Path(local_ranks.__file__).parents[2])
    return os.pathsep.join(filter(None, (root, path)))
