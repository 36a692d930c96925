# SPDX-License-Identifier: Apache-2.0
"""Run what the README of an exercise tells the learner to run, inside of a learner's copy."""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import warm_torch

from profiling_lab.cli import build_parser, main
from profiling_lab.exercises import workspace
from profiling_lab.exercises.exercise import Exercise

COMMAND = re.compile(r"^    ((?:profiling-lab|python) .+?)(?:\s+#.*)?$", re.M)


def run_all(exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All commands of the README. `exercise start` and `cd` come first and have been done."""
    folder = workspace.start(exercise, tmp_path / "copy")
    monkeypatch.chdir(folder)
    commands: list[str] = COMMAND.findall((exercise.folder / workspace.README).read_text())
    for command in commands:
        program, *words = shlex.split(command)
        arguments = [name for word in words for name in sorted(glob.glob(word)) or [word]]  # as a shell does
        if program == "python":
            if arguments[0] == "-c":
                done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
            else:
                done = warm_torch.run(arguments, folder, os.environ)
            assert done.returncode == 0, f"{command}: {done.stderr}"
            continue
        build_parser().parse_args(arguments)
        if arguments[:2] not in (["exercise", "start"], ["exercise", "profile"]):
            assert main(arguments) in (0, 1, 3), command
    return commands
