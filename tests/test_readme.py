# SPDX-License-Identifier: Apache-2.0
"""README says only what is true: its figures come from results files, its paths and commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from profiling_lab.cli import COMMANDS

REPO = Path(__file__).resolve().parents[1]
README = (REPO / "README.md").read_text()


def test_figures_are_those_of_the_results_files() -> None:
    done = subprocess.run([sys.executable, str(REPO / "docs" / "readme_numbers.py"), "--check"])
    assert done.returncode == 0, "run python docs/readme_numbers.py"


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (REPO / target).exists(), target


def test_commands_exist() -> None:
    named = set(re.findall(r"profiling-lab ([a-z]+)", README))
    assert named <= set(COMMANDS), named - set(COMMANDS)


def test_the_two_commands_are_what_ci_runs() -> None:
    ci = (REPO / ".ci" / "run").read_text() if (REPO / ".ci" / "run").is_file() else None
    for command in ("pip install . && profiling-lab demo", 'pip install ".[test]" && pytest'):
        assert command in README
        assert ci is None or command in ci
