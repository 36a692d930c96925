# SPDX-License-Identifier: Apache-2.0
"""The pages on the recorder: tests that they name exist, figures are those of the results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

TESTS = Path(__file__).resolve().parents[1]
REPO = TESTS.parent


def test_every_test_that_is_named_exists() -> None:
    page = (TESTS / "recorder" / "README.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    written = {
        name
        for folder in ("recorder", "trace", "analysis")
        for file in (TESTS / folder).glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(named) > 60 and named <= written, named - written
    assert all((REPO / name).is_file() for name in re.findall(r"`(benchmarks/[\w/]+\.py)`", page))


def test_the_table_of_coverage_is_that_of_the_results() -> None:
    results = REPO / "benchmarks" / "results" / "line_coverage.jsonl"
    pytest.importorskip("torch")
    table = subprocess.run(
        [sys.executable, str(REPO / "benchmarks" / "line_coverage.py"), "--table", str(results)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    ).stdout
    assert table.count("\n") > 10
    assert table in (REPO / "docs" / "notebook" / "recorder.md").read_text()
