# SPDX-License-Identifier: Apache-2.0
"""record_in_turns.py on the CPU: forks prepare together and run in turns, and what is there is kept."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import REPO
from package_root import PACKAGE_ROOT

from profiling_lab.exercises import find

SCRIPT = REPO / "tools" / "multi_gpu" / "record_in_turns.py"
PACKAGE = find("multi-gpu-scaling").entry.package


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module
    spec.loader.exec_module(module)
    return module


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--cpu", "--out", str(folder / "raw"), *arguments],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )  # fmt: skip


def test_pieces_of_each_kind(tmp_path: Path) -> None:
    """Links, a run on one rank, a timed one on two, a recorded one."""
    wanted = ("links", "after1", "cold_naive", "second")
    arguments = ("--seconds", "400", "--repeats", "1", "--only", ",".join(wanted), "--tar", "raw.tar.gz")
    done = run(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.partition(" s  ")[2] for line in done.stdout.splitlines()]
    assert said[:6] == ["imported", "prepared", *(f"{name}: done" for name in wanted)]
    with tarfile.open(tmp_path / "raw.tar.gz") as archive:
        names = {Path(name).name for name in archive.getnames()}
    files = {"links.json", "after1.json", "machine.json", "cold_naive.txt", "second.rank0.sqlite", "train.py"}
    assert {*files, "second.rank1.sqlite"} <= names
    assert not any(".ready" in name or name.endswith(".go") for name in names)


def test_unknown_pieces_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "links,juggling")
    assert done.returncode == 2 and "got juggling" in done.stderr and not (tmp_path / "raw").exists()


def piece_of(script: ModuleType, folder: Path, name: str, work: Callable[[int], Any]) -> Any:
    """A piece whose two ranks do this work."""
    piece = script.Piece(name, "multi-gpu-scaling", "train.py", False, 2, script.START)
    (folder / PACKAGE).mkdir(exist_ok=True)
    with open(folder / PACKAGE / f"{name}.txt", "wb") as printed:
        for rank in range(2):
            piece.pids[script.fork(work, rank, 2, "1", printed.fileno())] = rank
    return piece


def test_a_rank_that_fails_ends_the_others_and_leaves_nothing(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(rank: int) -> int:
        (tmp_path / PACKAGE / f"bad.rank{rank}.sqlite").touch()
        if not rank:
            time.sleep(60)
        raise ValueError("mine")

    piece = piece_of(script, tmp_path, "bad", work)
    begin = time.monotonic()
    script.take_turn(piece, tmp_path, begin + 40)
    assert time.monotonic() - begin < 30 and piece.failed == "rank 1: wait status 256"
    assert "ValueError: mine" in capsys.readouterr().out
    assert not piece.pids and not list((tmp_path / PACKAGE).glob("bad.*"))


def test_what_does_not_end_is_ended_and_says_where_it_was(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def hangs(rank: int) -> int:
        script.faulthandler.register(script.signal.SIGUSR1, file=sys.stdout)
        time.sleep(600)
        return 0

    piece = piece_of(script, tmp_path, "long", hangs)
    script.take_turn(piece, tmp_path, time.monotonic() + 2)
    assert piece.failed == "not done in time" and "in hangs" in capsys.readouterr().out


def test_the_archive_leaves_out_what_is_being_written(script: ModuleType, tmp_path: Path) -> None:
    piece = piece_of(script, tmp_path, "now", lambda rank: 0)
    script.take_turn(piece, tmp_path, time.monotonic() + 40)
    for name in ("now.rank0.sqlite", "then.rank0.sqlite", "then.go", "later.ready1"):
        (tmp_path / PACKAGE / name).touch()
    script.pack(tmp_path, tmp_path.with_suffix(".tar.gz"), piece)
    with tarfile.open(tmp_path.with_suffix(".tar.gz")) as archive:
        assert archive.getnames() == [f"{tmp_path.name}/{PACKAGE}/then.rank0.sqlite"]
