# SPDX-License-Identifier: Apache-2.0
"""Completion of commands, options and file names in a shell, written by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "tcsh")
_FILES = {"FILE", "PATH", "PAGE", "OUT", "FOLDER", "SCRIPT", "FILE.json"}


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """What a shell reads to complete the arguments of this parser. Raises UsageError without shtab."""
    from profiling_lab.errors import UsageError

    try:
        import shtab
    except ImportError:
        raise UsageError(
            "completion is written by shtab, which is not installed: pip install 'profiling-lab[completion]'"
        ) from None
    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell=shell)
    return text


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
