# SPDX-License-Identifier: Apache-2.0
"""Python programs of a page, each in a fork of one process that has imported torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import warm_torch
from package_root import PACKAGE_ROOT


def outcomes(programs: Mapping[Path, str]) -> dict[Path, tuple[int, str]]:
    """By folder, which is made, the exit code of its program and what it printed."""
    pytest.importorskip("torch")
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    found = {}
    for folder, program in programs.items():
        folder.mkdir()
        script = folder / "program.py"
        script.write_text(program)
        done = warm_torch.run([str(script)], folder, {**os.environ, "PYTHONPATH": path})
        found[folder] = done.returncode, done.stdout + done.stderr
    return found
