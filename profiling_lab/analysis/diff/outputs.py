# SPDX-License-Identifier: Apache-2.0
"""Whether two programs print the same: numbers within a tolerance, everything else exactly."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from profiling_lab.records import dataclass

State: TypeAlias = Literal["same", "differ", "undecided", "unchecked"]

_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf)\b)", re.IGNORECASE)
_SHOWN = 60
"""characters of a value in a sentence"""


@dataclass(frozen=True, slots=True)
class Output:
    """What one run printed."""

    name: str
    """of the run, as in 'A, run 2'"""
    stdout: str
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """What must be the same: what these regular expressions find, and all of the standard output."""

    patterns: tuple[re.Pattern[str], ...] = ()
    whole: bool = False
    rtol: float = 0.0
    atol: float = 0.0

    def fits(self, expected: float, found: float) -> bool:
        """Two values that are no numbers (nan) are the same."""
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(expected) and math.isnan(found)
        if math.isinf(expected) or math.isinf(found):
            return expected == found
        return abs(found - expected) <= self.atol + self.rtol * abs(expected)


@dataclass(frozen=True, slots=True)
class Compared:
    """'undecided': one side does not even print the same twice, or prints nothing that was looked for."""

    state: State
    sentence: str


def compare_outputs(before: Sequence[Output], after: Sequence[Output], wanted: OutputCheck) -> Compared:
    """Every run against the first one of the side before. The first thing that differs is told."""
    if not wanted.patterns and not wanted.whole:
        return Compared("unchecked", "not compared; --same 'loss (\\S+)' or --same-stdout compares them")
    looks: list[re.Pattern[str] | None] = [*wanted.patterns, *([None] if wanted.whole else [])]
    told = []
    for pattern in looks:
        found = _compare(before, after, pattern, wanted)
        if found.state != "same":
            return found
        told.append(found.sentence)
    return Compared("same", "; ".join(told))


def _compare(
    before: Sequence[Output], after: Sequence[Output], pattern: re.Pattern[str] | None, wanted: OutputCheck
) -> Compared:
    what = "the standard output" if pattern is None else f"'{pattern.pattern}'"
    first, expected = before[0], _values(before[0], pattern)
    others = [(run, _values(run, pattern)) for run in (*before[1:], *after)]
    if pattern is not None and not expected and not any(values for _, values in others):
        return Compared("undecided", f"{what} matches nothing that the programs print")
    for run, values in others:
        why = _first_difference(first, expected, run, values, wanted)
        if not why:
            continue
        if run in before:
            advice = "fix the seed, or allow more with --rtol"
            return Compared("undecided", f"{what} differs between runs of one program: {why}; {advice}")
        return Compared("differ", f"{what} differs: {why}")
    runs, tolerance = len(before) + len(after), _tolerance(wanted)
    count = "" if pattern is None else f", {len(expected)} value{'' if len(expected) == 1 else 's'} a run"
    return Compared("same", f"{what} is the same in all {runs} runs{count}{tolerance}")


def _values(run: Output, pattern: re.Pattern[str] | None) -> list[str]:
    """Lines of the standard output, or what the pattern finds: there, or if nothing in standard error."""
    if pattern is None:
        return run.stdout.splitlines()
    for text in (run.stdout, run.stderr):
        if found := [" ".join(match.groups("") or (match[0],)) for match in pattern.finditer(text)]:
            return found
    return []


def _first_difference(
    first: Output, expected: list[str], run: Output, values: list[str], wanted: OutputCheck
) -> str:
    for i, (mine, other) in enumerate(zip(expected, values, strict=False), 1):
        if not _equal(mine, other, wanted):
            return f"number {i} is {_shown(mine)} in {first.name} and {_shown(other)} in {run.name}" + (
                _apart(mine, other) or ""
            )
    if len(expected) != len(values):
        return f"{len(expected)} in {first.name} and {len(values)} in {run.name}"
    return ""


def _equal(expected: str, found: str, wanted: OutputCheck) -> bool:
    # With a group in the pattern, split() returns the texts between the numbers and the numbers in turn.
    mine, other = _NUMBER.split(expected), _NUMBER.split(found)
    if len(mine) != len(other):
        return False
    if any(a.split() != b.split() for a, b in zip(mine[::2], other[::2], strict=True)):
        return False
    return all(wanted.fits(float(a), float(b)) for a, b in zip(mine[1::2], other[1::2], strict=True))


def _apart(expected: str, found: str) -> str:
    """How far two numbers are apart, as what --rtol would have to allow."""
    try:
        a, b = float(expected), float(found)
    except ValueError:
        return ""
    return f" ({abs(b - a) / abs(a):.2g} of it)" if a and math.isfinite(a) and math.isfinite(b) else ""


def _tolerance(wanted: OutputCheck) -> str:
    limits = [f"{name} {value:g}" for name, value in (("rtol", wanted.rtol), ("atol", wanted.atol)) if value]
    return f", within {' and '.join(limits)}" if limits else ", exactly"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
