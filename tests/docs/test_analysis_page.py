# SPDX-License-Identifier: Apache-2.0
"""The guide to the analysis shows what its commands print, and knows all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from package_root import PACKAGE_ROOT

from profiling_lab.cli import COMMANDS

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "analysis.md").read_text()
NOT_ANALYSES = {"demo", "record", "recover", "merge", "doctor", "exercise"}


def test_every_example_is_what_its_command_prints(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(REPO / "docs" / "analysis_page.py"), "--check"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"run python docs/analysis_page.py\n{done.stderr}"


def test_every_analysis_answers_a_question() -> None:
    table = PAGE.partition("| question |")[2].partition("\n\n")[0]
    answered = set(re.findall(r"`([a-z]+)`", table))
    assert answered == set(COMMANDS) - NOT_ANALYSES


def test_links_lead_somewhere() -> None:
    headings = {
        "#" + re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"(?m)^## (.+)$", PAGE)
    }
    targets = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert targets
    for target in targets:
        assert target in headings or (REPO / "docs" / target).exists(), target
