# SPDX-License-Identifier: Apache-2.0
"""The guide to the analysis shows what its commands print, and knows all of them."""

from __future__ import annotations

import re
from pathlib import Path

from generated_page import assert_current

from profiling_lab.cli import COMMANDS

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "analysis.md").read_text()
NOT_ANALYSES = {"demo", "record", "attach", "detach", "status", "recover", "merge", "doctor", "exercise"}
NOT_ANALYSES |= {"mcp"}  # it serves them


def test_every_example_is_what_its_command_prints(tmp_path: Path) -> None:
    assert_current("analysis_page.py", tmp_path)


def test_every_analysis_answers_a_question() -> None:
    table = PAGE.partition("| question |")[2].partition("\n\n")[0]
    answered = set(re.findall(r"`([a-z-]+)`", table))
    assert answered == set(COMMANDS) - NOT_ANALYSES
