# SPDX-License-Identifier: Apache-2.0
"""The two programs of `profiling-lab ab`, from its command line."""

from __future__ import annotations

import argparse
import os
import shlex

from profiling_lab.records import dataclass

_BETWEEN = ":::"
_OWN_OPTIONS = ("output", "overwrite", "dormant", "status", "signal")
"""options of `record` that mean nothing where it runs many times, or that we set"""


@dataclass(frozen=True, slots=True)
class Program:
    """What `record` is given."""

    words: tuple[str, ...]
    script: str
    is_module: bool

    def with_script(self, path: str) -> Program:
        if self.is_module or path == self.script:
            return self
        at = self.words.index(self.script)
        return Program((*self.words[:at], path, *self.words[at + 1 :]), path, False)


@dataclass(frozen=True, slots=True)
class Sides:
    a: Program
    b: Program
    options: tuple[str, ...]
    """of `record`, for both"""

    @property
    def shown(self) -> tuple[str, str]:
        return shlex.join(self.a.words), shlex.join(self.b.words)


def sides_of(args: argparse.Namespace) -> Sides:
    """Raises UsageError if there are not two programs, or if `record` would not accept one many times."""
    from profiling_lab.errors import UsageError
    from profiling_lab.recording.rank_in_job import rank_in_job

    if rank_in_job().number is not None:
        raise UsageError(
            "ab is one rank of a job here; run it outside, with the launcher in A and B: "
            "profiling-lab ab -- torchrun ... train.py ::: torchrun ... train.py"
        )
    if args.go_on and not args.keep:
        raise UsageError("--continue needs --keep DIR, the folder to go on in")
    if args.link and not args.git:
        raise UsageError("--link needs --git: it is about the files that a commit does not have")
    if args.whole and args.steps_by:
        raise UsageError("--whole cannot be combined with --steps-by: it looks for no steps")
    given = _split(args.programs, twice=bool(args.git))
    try:
        options = tuple(shlex.split(args.record))
    except ValueError as error:
        raise UsageError(f"--record: {error} in {args.record!r}") from None
    a, b = (_program(options, words, name) for words, name in zip(given, "AB", strict=True))
    return Sides(a, b, options)


def _split(words: list[str], twice: bool) -> list[list[str]]:
    from profiling_lab.errors import UsageError

    words = words[1:] if words[:1] == ["--"] else words
    sides: list[list[str]] = [[]]
    for word in words:
        if word == _BETWEEN:
            sides.append([])
        else:
            sides[-1].append(word)
    if twice and len(sides) == 1:
        sides *= 2
    if len(sides) != 2 or not all(sides):
        told = sum(map(bool, sides)) if len(sides) <= 2 else len(sides)
        expected = "one program after --, or two with ::: between them" if twice else "two programs, A ::: B"
        raise UsageError(f"expected {expected}, not {told or 'none'}")
    return sides


def _program(options: tuple[str, ...], words: list[str], name: str) -> Program:
    """What `record` understands. Its own parser ends the process where it understands nothing."""
    from profiling_lab.cli import record
    from profiling_lab.cli._parser import Parser
    from profiling_lab.errors import UsageError

    parser = Parser(prog=f"profiling-lab ab: record {name}", add_help=False)
    record.add_arguments(parser)
    empty = parser.parse_args(["x"])
    found = parser.parse_args([*options, *words])
    for option in _OWN_OPTIONS:
        if getattr(found, option) != getattr(empty, option):
            raise UsageError(f"the option --{option} of record cannot be used in ab")
    if found.script == "-":
        raise UsageError(f"{name} cannot be a script on the standard input, which can be read only once")
    return Program(tuple(words), found.script, found.is_module)


def check_exists(program: Program, folder: str, name: str) -> None:
    """Raises UnreadableInputError if there is no such script or program for a process in this folder."""
    from profiling_lab.cli._launch import find_program
    from profiling_lab.errors import UnreadableInputError
    from profiling_lab.recording.run_script import find_script

    if program.is_module:  # only Python can tell, and it imports the module's packages to do so
        return
    path = os.path.join(folder, program.script)
    if os.path.exists(path):
        if find_program(path) is None:
            find_script(path)
    elif os.path.basename(program.script) != program.script or find_program(program.script) is None:
        raise UnreadableInputError(f"{name}: there is no script or program {program.script} (in {folder})")
