# SPDX-License-Identifier: Apache-2.0
"""The page of the Python API shows what its examples print, and knows every command and call."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from generated_page import assert_current

from profiling_lab.api import TraceTables
from profiling_lab.cli import COMMANDS

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "api.md").read_text()
TABLE = PAGE.partition("| command |")[2].partition("\n\n")[0]
WITHOUT_A_TABLE = {"demo", "record", "attach", "detach", "status", "recover", "merge", "report", "export"}
NOT_OF_A_TRACE = {"doctor", "exercise", "ab", "bench", "mcp", "peaks", "interconnect"}


def test_every_example_prints_what_the_page_says(tmp_path: Path) -> None:
    assert_current("api_page.py", tmp_path)


def test_every_table_of_the_command_line_has_its_call() -> None:
    named = set(re.findall(r"`([a-z-]+)`", TABLE))
    assert named == set(COMMANDS) - WITHOUT_A_TABLE - NOT_OF_A_TRACE


def test_every_call_is_on_the_page() -> None:
    makes_table = {
        name
        for name, call in inspect.getmembers(TraceTables, callable)
        if not name.startswith("_") and str(inspect.signature(call).return_annotation).startswith("Table[")
    }
    assert set(re.findall(r"`trace\.(\w+)\(\)`", TABLE)) == makes_table and len(makes_table) == 24
