# SPDX-License-Identifier: Apache-2.0
"""README says only what is true: its figures come from results files, its paths and commands exist."""

from __future__ import annotations

import re
from pathlib import Path

from generated_page import assert_current

from profiling_lab.cli import COMMANDS

REPO = Path(__file__).resolve().parents[1]
README = (REPO / "README.md").read_text()


def test_figures_are_those_of_the_results_files(tmp_path: Path) -> None:
    assert_current("readme_numbers.py", tmp_path)


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
