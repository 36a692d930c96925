# SPDX-License-Identifier: Apache-2.0
"""The fake CUPTI, compiled once for all processes of a test run: that takes longer than most tests."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "fake_cupti" / "fake_cupti.cpp"


def fake_cupti(folders: pytest.TempPathFactory) -> Path:
    """Path of the library."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed, and the fake CUPTI is C++")
    base = folders.getbasetemp()  # of pytest-xdist each process has one below that of the run
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fake_cupti"
    folder.mkdir(exist_ok=True)
    library, unfinished = folder / "libfake_cupti.so", folder / "unfinished.so"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{HERE.parents[1] / 'csrc'}"]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            subprocess.run([compiler, *flags, str(SOURCE), "-o", str(unfinished)], check=True)
            unfinished.rename(library)
    return library
