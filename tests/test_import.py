# SPDX-License-Identifier: Apache-2.0
"""Importing the package costs next to nothing: `record` imports it into the process that it measures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    "statement",
    [
        "import profiling_lab",
        "import profiling_lab.ops",
        "import profiling_lab.utils, profiling_lab.utils.unified_profiler",
        "from profiling_lab.cli import build_parser; build_parser()",
        "from profiling_lab.recording import record, run_script",
    ],
)
def test_nothing_heavy_is_loaded(statement: str) -> None:
    program = f"{statement}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    assert python(program).strip() == "[]"


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        pytest.param("import profiling_lab", 50, id="package"),
        pytest.param("from profiling_lab.cli import build_parser; build_parser()", 120, id="command-line"),
    ],
)
def test_few_modules_are_loaded(statement: str, most: int) -> None:
    """What an import costs is what it loads: some 0.1 ms a module."""
    program = "import sys; bare = len(sys.modules); %s; print(len(sys.modules) - bare)"
    assert int(python(program % statement)) <= most


@pytest.mark.parametrize(
    ("name", "others"),
    [("trace.sqlite", ("kineto.source", "nsys.parquet_folder")), ("trace.json", ("nsys.source",))],
)
def test_a_command_loads_the_reader_of_its_file(tmp_path: Path, name: str, others: tuple[str, ...]) -> None:
    exercise = PACKAGE_ROOT / "profiling_lab" / "exercises" / "e17_python_backtrace"
    shutil.copy(exercise / "recorded" / "demo_h200.sqlite", tmp_path / "trace.sqlite")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    loaded = python(
        f"import sys; from profiling_lab.cli import main; main(['lines', {str(tmp_path / name)!r}])\n"
        "print('LOADED', [name for name in sys.modules if name.startswith('profiling_lab.trace.')])"
    ).partition("LOADED")[2]
    assert "formats" in loaded and not [other for other in others if other in loaded]
