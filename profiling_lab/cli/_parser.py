# SPDX-License-Identifier: Apache-2.0
"""The parser of every command: it suggests the nearest spelling, and lists commands in groups."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def columns() -> int:
    """As shutil.get_terminal_size, whose import takes long. argparse asks it once for each argument."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


class Parser(argparse.ArgumentParser):
    """argparse's own suggestions (suggest_on_error) exist from Python 3.14 on, and not for options."""

    takes_program = False
    """whether a program follows after --, for a command with options after a file: `program` of the result"""

    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """titles, and the commands that --help lists below each"""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """An unknown argument of a command is an error of that command, whose usage and options help."""
        words = list(sys.argv[1:] if args is None else args)
        program: list[str] = []
        if self.takes_program and "--" in words:
            at = words.index("--")
            words, program = words[:at], words[at + 1 :]
        found, unknown = super().parse_known_args(words, namespace)
        if self.takes_program:
            found.program = program
        if unknown:
            named = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            nearest = [near for word in named if (near := _nearest(word, self._option_string_actions))]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_did_you_mean(nearest)}")
        return found, unknown

    def format_help(self) -> str:
        if not self.groups:
            return super().format_help()
        helps = {action.dest: action.help for action in self._commands()}
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, names in self.groups:
            formatter.start_section(title)
            formatter.add_arguments(
                argparse.Action([], name, metavar=name, help=helps[name]) for name in names
            )
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(action for action in self._actions if action.option_strings)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _commands(self) -> list[argparse.Action]:
        """One pseudo-action per command, with its name and help."""
        return [each for action in self._actions for each in _names_of(action)]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        names = [each.dest for each in _names_of(action)]
        if names and value not in names:
            near = _nearest(str(value), names)
            others = "" if near else f"; there are {', '.join(names)}"
            self.error(f"there is no {action.dest} {value!r}{_did_you_mean([near] if near else [])}{others}")
        super()._check_value(action, value)


def _names_of(action: argparse.Action) -> list[argparse.Action]:
    return list(action._get_subactions()) if isinstance(action, argparse._SubParsersAction) else []


def _nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1)), "")


def _did_you_mean(nearest: Sequence[str]) -> str:
    return f"; did you mean {', '.join(nearest)}?" if nearest else ""
