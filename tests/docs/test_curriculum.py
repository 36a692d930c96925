# SPDX-License-Identifier: Apache-2.0
"""Each item of the curriculum has one row, and what the row names exists."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path

import pytest
from generated_page import assert_current

from profiling_lab import utils
from profiling_lab.cli import COMMANDS
from profiling_lab.exercises import catalogue, entries
from profiling_lab.rules import RULES

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "docs" / "curriculum"
ROW = re.compile(r"^\| (S\d+) \| (.+?) \| ([a-z ]+) \| (.+) \|$", re.M)
ROWS = [
    (page.name, *row) for page in sorted(FOLDER.glob("[!i]*.md")) for row in ROW.findall(page.read_text())
]
OWN_NAMES = {
    *COMMANDS,
    *(rule.name for rule in RULES),
    *utils.__all__,
    "flash_attention",
    "sqlite",
    "python/",
}


def test_every_item_has_one_row() -> None:
    assert sorted(int(row[1][1:]) for row in ROWS) == list(range(1, 248))


def test_states_and_counts_are_current(tmp_path: Path) -> None:
    assert_current("curriculum_page.py", tmp_path)


def unknown(word: str) -> str | None:
    """Why a name in backticks is not one of ours; None if it is."""
    if word.startswith("profiling-lab "):
        return unknown_options(word.split())
    if word in OWN_NAMES:
        return None
    if "/" in word:
        return None if (REPO / word).exists() else "no such file"
    return "neither a path, a command, a rule nor a function of profiling_lab.utils"


def unknown_options(words: list[str]) -> str | None:
    _, command, *rest = words
    if command not in COMMANDS:
        return f"no command {command}"
    parser = argparse.ArgumentParser()
    import_module(f"profiling_lab.cli.{command}").add_arguments(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            known |= set(action.choices)
    wrong = [word for word in rest if word not in known]
    return f"{command} has no {', '.join(wrong)}" if wrong else None


def test_what_a_row_names_exists() -> None:
    named = [(item, word) for _, item, _, _, where in ROWS for word in re.findall(r"`([^`]+)`", where)]
    assert len(named) > 150
    assert [f"{item} {word}: {unknown(word)}" for item, word in named if unknown(word)] == []


def test_a_row_says_where_or_why_not() -> None:
    for _, item, _, state, where in ROWS:
        assert state in ("works", "partly", "planned", "not covered"), item
        assert re.search(r"`|\]\(|exercises? E\d\d", where) or state == "not covered", item
        lacks = "Lacks: " in where or (state == "partly" and "built)" in where)
        assert lacks == (state == "partly"), f"{item}: partly says what lacks"
        assert where.startswith("because ") == (state == "not covered"), f"{item}: not covered says why"


def test_exercises_that_a_row_calls_planned_are() -> None:
    built = {exercise.number for exercise in catalogue()}
    numbers = {each.number for each in entries()}
    for _, item, _, _, where in ROWS:
        assert {int(number) for number in re.findall(r"E(\d\d)", where)} <= numbers, item
        for number in re.findall(r"exercise E(\d\d) is planned", where):
            assert int(number) not in built, f"{item}: it is built, say so"


@pytest.mark.parametrize(
    "word", ["profiling-lab nothing", "profiling-lab lines --nothing", "tests/nothing.py", "no_such_rule"]
)
def test_a_wrong_name_is_found(word: str) -> None:
    assert unknown(word) is not None
