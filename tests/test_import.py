# SPDX-License-Identifier: Apache-2.0
"""Importing the package costs next to nothing: `record` imports it into the process that it measures."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from package_root import PACKAGE_ROOT

HEAVY = ("torch", "numpy", "pyarrow", "rich", "msgspec", "adbc_driver_sqlite")


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def seconds(program: str) -> float:
    began = time.perf_counter()
    python(program)
    return time.perf_counter() - began


@pytest.mark.parametrize(
    "statement",
    [
        "import profiling_lab",
        "import profiling_lab.ops",
        "from profiling_lab.cli import build_parser; build_parser()",
        "from profiling_lab.recording import record, run_script",
    ],
)
def test_nothing_heavy_is_loaded(statement: str) -> None:
    program = f"{statement}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    assert python(program).strip() == "[]"


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("import profiling_lab", id="package"),
        pytest.param("from profiling_lab.cli import build_parser; build_parser()", id="command-line"),
    ],
)
def test_import_takes_less_than_a_tenth_of_a_second(statement: str) -> None:
    # The best of several interleaved runs each: other work on the machine only ever adds time.
    bare, ours = [], []
    for _ in range(7):
        bare.append(seconds("pass"))
        ours.append(seconds(statement))
    assert min(ours) - min(bare) < 0.1
