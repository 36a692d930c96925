# SPDX-License-Identifier: Apache-2.0
"""Runs a command line that a page shows, in a folder like a clone.

Lines are many, and an interpreter that imports what a command needs takes longer than the command. So
`profiling-lab` runs in this process, and a script in a fork of one that has imported torch; on two ranks in
two, but for the first line, which torchrun starts. What a shell has to read goes to a shell, where all are
programs of their own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import warm_torch
from exercises.multi_gpu.rank_answers import run_on_two
from package_root import PACKAGE_ROOT

from profiling_lab.cli import main

Done = subprocess.CompletedProcess[str]
FOR_A_SHELL = re.compile(r"[|&;<>$*?`]")
ON_TWO = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
_with_torchrun: list[str] = []
"""the lines of this process that it has started"""


def programs(folder: Path) -> None:
    """Makes `profiling-lab` and `python` for the shell."""
    (folder / "bin").mkdir()
    for name, module in (("profiling-lab", "-m profiling_lab"), ("python", "")):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        command.chmod(0o755)


def run_in_shell(line: str, folder: Path) -> Done:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(PACKAGE_ROOT)}
    return subprocess.run(["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True)


def run(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Done:
    program, *words = shlex.split(line, comments=True)
    if FOR_A_SHELL.search(line.partition(" #")[0]) or program not in ("profiling-lab", "python"):
        return run_in_shell(line, folder)
    if program == "python":
        if words[:4] == ON_TWO and _with_torchrun:
            return run_on_two(Path(words[4]), *words[5:], folder=folder)
        if words[0].startswith("-"):
            _with_torchrun.extend([line] * (words[:4] == ON_TWO))
            return run_in_shell(line, folder)
        return warm_torch.run(words, folder, os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)})
    monkeypatch.chdir(folder)
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    printed = capsys.readouterr()
    return subprocess.CompletedProcess(words, status, printed.out, printed.err)
