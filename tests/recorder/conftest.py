# SPDX-License-Identifier: Apache-2.0
"""The fake CUPTI, and scripts that run under it in a process of their own."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorder.compiled_fake import fake_cupti
from recorder.runner import Runner, fake_runner

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the compiled fake CUPTI."""
    return fake_cupti(tmp_path_factory)


@pytest.fixture
def run(tmp_path: Path, fake_library: Path) -> Runner:
    """A Runner under the fake CUPTI, whose driver is `fake`."""
    return fake_runner(tmp_path, fake_library)


@pytest.fixture
def run_warm(run: Runner) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run` for what is not about importing torch, which has happened already."""
    pytest.importorskip("torch")
    return functools.partial(run, warm=True)


@pytest.fixture
def run_gpu(tmp_path: Path) -> Runner:
    """A Runner under the real CUPTI, with torch imported."""
    return Runner(tmp_path, "import torch", {})


@pytest.fixture(scope="session")
def apps(fake_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two libraries that use NVTX, as environment for `run`."""
    folder = tmp_path_factory.mktemp("nvtx")
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    for name in ("one.so", "two.so"):
        flags = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{REPO / 'csrc'}", "-ldl"]
        subprocess.run([compiler, str(HERE / "fake_nvtx.cpp"), *flags, "-o", str(folder / name)], check=True)
    return {"APPS": str(folder)}


@pytest.fixture
def query(tmp_path: Path) -> Callable[..., list[tuple[Any, ...]]]:
    """Rows of the recording that `run` wrote."""

    def rows(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{tmp_path / 'out.sqlite'}?mode=ro", uri=True) as file:
            return file.execute(sql, parameters).fetchall()

    return rows


@pytest.fixture
def preload(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Makes the environment that puts a few lines of C++ before the C library."""

    def environment(text: str) -> dict[str, str]:
        source, library = tmp_path / "preload.cpp", tmp_path / "libpreload.so"
        source.write_text(text)
        compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
        subprocess.run([compiler, "-shared", "-fPIC", str(source), "-ldl", "-o", str(library)], check=True)
        return {"LD_PRELOAD": str(library)}

    return environment


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
