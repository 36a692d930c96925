# SPDX-License-Identifier: Apache-2.0
"""The fake CUPTI, built once per session, and scripts that run under it in a process of their own."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the compiled fake CUPTI."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler is installed, and the fake CUPTI is C++")
    out = tmp_path_factory.mktemp("fake_cupti") / "libfake_cupti.so"
    source = HERE / "fake_cupti" / "fake_cupti.cpp"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{REPO / 'csrc'}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(out)], check=True)
    return out


@pytest.fixture
def run(tmp_path: Path, fake_library: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code in a fresh process under the fake CUPTI: `fake` is its driver, `OUT` a path to record to."""
    import profiling_lab

    package = str(Path(profiling_lab.__file__).parents[1])

    def run_code(
        code: str, *, ok: bool = True, env: dict[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        prelude = "import os, sys, time, profiling_lab.errors, profiling_lab.recording; from fake_driver import *; fake = Fake(); "
        prelude += f"OUT = {str(tmp_path / 'out.sqlite')!r}\n"
        script.write_text(prelude + code.lstrip("\n"))
        environment = {k: v for k, v in os.environ.items() if k != "NVTX_INJECTION64_PATH"}
        environment |= {
            "PYTHONPATH": os.pathsep.join([package, str(HERE)]),
            "PROFILING_LAB_CUPTI": str(fake_library),
            **(env or {}),
        }
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=timeout,
        )
        if ok:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run_code


@pytest.fixture
def query(tmp_path: Path) -> Callable[..., list[tuple[Any, ...]]]:
    """Rows of the recording that `run` wrote."""

    def rows(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{tmp_path / 'out.sqlite'}?mode=ro", uri=True) as file:
            return file.execute(sql, parameters).fetchall()

    return rows


# Each call with the line that made it: the innermost frame outside of the driver.
LINES = """
    WITH RECURSIVE up(launch, node) AS (
        SELECT l.rowid, l.stackId FROM PYREC_LAUNCH l
        UNION ALL SELECT launch, s.parentId FROM up JOIN PYREC_STACK s ON s.id = up.node)
    SELECT l.correlationId, f.line, (SELECT value FROM StringIds WHERE id = f.functionId)
    FROM PYREC_LAUNCH l
    JOIN up ON up.launch = l.rowid
    JOIN PYREC_STACK s ON s.id = up.node
    JOIN PYREC_FRAME f ON f.id = s.frameId
    WHERE (SELECT value FROM StringIds WHERE id = f.fileId) LIKE '%script.py'
    GROUP BY l.rowid HAVING s.depth = max(s.depth)
    ORDER BY l.correlationId"""


@pytest.fixture
def launch_lines(query: Callable[..., list[tuple[Any, ...]]]) -> Callable[[], list[tuple[int, int, str]]]:
    """(correlation id, line minus the prelude, function) of every recorded call, in order."""

    def lines() -> list[tuple[int, int, str]]:
        return [(correlation, line - 1, function) for correlation, line, function in query(LINES)]

    return lines
