# SPDX-License-Identifier: Apache-2.0
"""The picture of the demo shows what the demo printed, in the colours in which it prints."""

from __future__ import annotations

import html
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from profiling_lab.demo.story import tell
from profiling_lab.exercises import find
from profiling_lab.report.screen.terminal import say
from profiling_lab.trace import Trace

REPO = Path(__file__).resolve().parents[2]
STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("terminal_picture", REPO / "tools" / "terminal_picture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_picture_shows_what_was_printed(picture: ModuleType) -> None:
    """Its letters; how rich draws a terminal around them differs from version to version."""
    drawn = (REPO / "docs" / "demo.svg").read_text()
    letters = "".join(
        html.unescape(text) for text in re.findall(r"<text[^>]*>(.*?)</text>", drawn, re.DOTALL)
    )
    expected = f"{picture.COMMAND}$ {picture.COMMAND}" + (REPO / "docs" / "demo.txt").read_text()
    assert "".join(letters.split()) == "".join(expected.split())


def runs_of_style(ansi: str) -> list[tuple[str, frozenset[str]]]:
    """Each character but blanks, with the styles that hold where it stands."""
    found, styles = [], frozenset[str]()
    for part in re.split(r"(\x1b\[[0-9;]*m)", ansi):
        if STYLE.fullmatch(part):
            codes = frozenset(part[2:-1].split(";")) - {"", "0"}
            styles = styles | codes if codes else frozenset()
        else:
            found += [(character, styles) for character in part if not character.isspace()]
    return found


def test_the_demo_prints_the_colours_that_the_picture_paints(
    picture: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": "200", "LINES": "50"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed, painted = Terminal(), Terminal()
    with Trace.open(find("python-backtrace").folder / "recorded" / "demo_h200.sqlite") as trace:
        tell(trace, stream=printed)
    say(printed, ["", "Next: profiling-lab exercise start python-backtrace"])
    console = Console(file=painted, highlight=False, emoji=False)
    for line in STYLE.sub("", printed.getvalue()).splitlines():
        console.print(picture.shown(line.rstrip()), soft_wrap=True)
    assert runs_of_style(printed.getvalue()) == runs_of_style(painted.getvalue())
    assert "32" in {code for _, codes in runs_of_style(printed.getvalue()) for code in codes}, "no green"


def test_no_colour_where_the_output_is_no_terminal() -> None:
    out = io.StringIO()
    with Trace.open(find("python-backtrace").folder / "recorded" / "demo_h200.sqlite") as trace:
        tell(trace, stream=out)
    assert "\x1b" not in out.getvalue()
