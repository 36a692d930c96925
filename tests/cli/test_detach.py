# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab detach`: processes that cannot be asked. tests/recorder/test_live.py detaches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli.script_runs import run


@pytest.mark.parametrize(
    ("process", "part"),
    [("4194305", "there is no process 4194305"), ("OURS", "cannot be attached to")],
)
def test_what_cannot_be_asked(tmp_path: Path, process: str, part: str) -> None:
    sockets = str(tmp_path / "s")
    process = str(os.getpid()) if process == "OURS" else process
    done = run(tmp_path, "-m", "profiling_lab", "detach", process, PROFILING_LAB_SOCKETS=sockets)
    assert done.code == 2 and part in done.err
