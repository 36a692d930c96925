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

REPO = Path(__file__).resolve().parents[1]
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


@pytest.mark.parametrize("command", ["lines", "kernels", "steps", "copies", "gaps", "check"])
def test_a_small_table_does_without_slow_modules(command: str) -> None:
    """Some of them take longer to import than a small recording to read; together the others do."""
    recording = PACKAGE_ROOT / "profiling_lab/exercises/e17_python_backtrace/recorded/demo_h200.sqlite"
    slow = ("pyarrow.compute", "pyarrow.dataset", "numpy.ma", "torch", "pandas", "msgspec", "json")
    slow += ("rich", "html", "csv", "difflib", "shutil", "tempfile", "importlib.resources")
    program = f"import sys; from profiling_lab.cli import main; main([{command!r}, {str(recording)!r}])"
    printed = python(f"{program}; print('LOADED', [name for name in {slow!r} if name in sys.modules])")
    assert printed.partition("LOADED")[2].strip() == "[]"


def test_a_command_loads_itself_alone() -> None:
    program = "import sys; from profiling_lab.cli import main; main(['rules', 'bound'])"
    printed = python(
        f"{program}; print('LOADED', [n for n in sys.modules if n.startswith('profiling_lab.cli.')])"
    )
    commands = printed.partition("LOADED")[2]
    assert "cli.rules" in commands and "cli.record" not in commands and "cli.lines" not in commands


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


def test_a_source_tree_has_a_version() -> None:
    """`profiling-lab --version` of a clone that was never installed answers; -S hides what is installed."""
    program = "import sys; sys.argv = ['profiling-lab', '--version']; import profiling_lab.cli as c; c.main()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.stdout == "profiling-lab unknown (not installed)\n", done.stderr
