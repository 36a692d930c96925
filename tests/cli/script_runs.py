# SPDX-License-Identifier: Apache-2.0
"""Runs a script with Python alone and under `profiling-lab record`, and tells what both said apart."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from package_root import PACKAGE_ROOT

SAYS = "profiling-lab: "


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str  # without our own lines
    said: str  # our own lines


def run(folder: Path, *command: str, stdin: str = "", cupti: str = "", **more: str) -> Outcome:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}
    environment.pop("PROFILING_LAB_CUPTI", None)
    if cupti:
        environment["PROFILING_LAB_CUPTI"] = cupti
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = done.stderr.splitlines(keepends=True)
    return Outcome(
        done.returncode,
        done.stdout,
        "".join(line for line in lines if not line.startswith(SAYS)),
        "".join(line for line in lines if line.startswith(SAYS)),
    )


def record(folder: Path, *arguments: str, **more: str) -> Outcome:
    return run(folder, "-m", "profiling_lab", "record", *arguments, **more)


def write(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path
