# SPDX-License-Identifier: Apache-2.0
"""What tests of the exercises on several GPUs share: a learner's copy with recordings, and its grading."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import warm_torch
from exercises.readme_commands import COMMAND
from package_root import PACKAGE_ROOT

from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import answers, workspace
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.exercise import CheckStatus, Exercise, GradedCheck


def copy_of(exercise: Exercise, folder: Path, recorded: Path) -> Path:
    """A learner's copy of the solution, with recordings in `run1`."""
    copy = workspace.start(exercise, folder / "copy")
    workspace.copy_solution(exercise, copy)
    shutil.copytree(recorded, copy / "run1")
    return copy


def answers_in(copy: Path, **changes: object) -> Answers:
    return answers.read(copy).replaced({"trace": "run1", **changes})


def graded(exercise: Exercise, copy: Path, given: Answers) -> dict[str, GradedCheck]:
    return {check.name: check for check in exercise.findings(copy, given)}


def failed_in(checks: Mapping[str, GradedCheck]) -> set[str]:
    return {name for name, check in checks.items() if check.status is CheckStatus.FAILED}


def run_commands(
    exercise: Exercise, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> int:
    """Run what README.md says about the recordings in `run1`, and parse the rest; how many ran."""
    monkeypatch.chdir(copy)
    ran = 0
    for command in COMMAND.findall((exercise.folder / workspace.README).read_text()):
        program, *arguments = shlex.split(command)
        if program == "python":
            continue
        build_parser().parse_args(arguments)
        if re.search(r"\brun1\b", command) and arguments[0] != "record":
            arguments += ["--jobs", "1"] if arguments[0] in ("ranks", "collectives") else []
            assert main(arguments) in (0, 1), f"{command}: {capsys.readouterr().err}"
            ran += 1
    return ran


TWO_RANKS = """
import os, runpy, sys
port, *sys.argv = sys.argv[1:]
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
ranks = []
for rank in "01":
    pid = os.fork()
    if not pid:
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        finally:
            sys.stdout.flush()
    if not pid:
        os._exit(0)
    ranks.append(pid)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in ranks]))
"""


def run_on_two(program: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As torchrun starts it, in two forks of a process that has imported torch."""
    (folder / "two_ranks.py").write_text(TWO_RANKS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    return warm_torch.run(["two_ranks.py", port, str(program), *arguments], folder, environment)
