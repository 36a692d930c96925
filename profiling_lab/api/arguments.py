# SPDX-License-Identifier: Apache-2.0
"""Arguments of the calls, turned into those of the analyses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from profiling_lab.errors import UsageError

if TYPE_CHECKING:
    from profiling_lab.rules import Rule
    from profiling_lab.rules.settings import Settings
    from profiling_lab.trace.window import WindowSelection

StrPath: TypeAlias = str | os.PathLike[str]
Names: TypeAlias = str | Iterable[str]
Numbers: TypeAlias = int | Iterable[int]
Thresholds: TypeAlias = Mapping[str, str | float] | Iterable[str]


def paths_of(given: StrPath | Iterable[StrPath]) -> tuple[str, ...]:
    """One path or several, as texts."""
    if isinstance(given, str | os.PathLike):
        return (os.fspath(given),)
    return tuple(os.fspath(path) for path in given)


def selection(
    range: str | None,
    step: int | str | None,
    nvtx: str | None,
    rank: Numbers | None,
    device: Numbers | None,
    steps_by: str | None,
) -> WindowSelection:
    """The part of a trace, as the options of the same names select it."""
    from profiling_lab.trace.window import WindowSelection

    return WindowSelection(
        range=range,
        step=None if step is None else str(step),
        nvtx=nvtx,
        ranks=numbers_of(rank),
        devices=numbers_of(device),
        steps_by=steps_by,
    )


def numbers_of(given: Numbers | None) -> tuple[int, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else tuple(given)


def rows_of(limit: int | None) -> int | None:
    """The most rows; None and 0 are all of them. Raises UsageError for a negative number."""
    if limit is not None and limit < 0:
        raise UsageError(f"limit must be at least 0, not {limit}")
    return limit or None


def one_of(name: str, given: Any, known: Any) -> None:
    """Raises UsageError unless a value is one of a Literal type."""
    if given not in get_args(known):
        raise UsageError(f"{name} must be one of {', '.join(get_args(known))}, not {given!r}")


def chosen_rules(
    only: Names | None,
    skip: Names,
    thresholds: Thresholds,
    rules_from: StrPath | Iterable[StrPath],
    *,
    trace: bool = True,
    counters: bool = True,
) -> tuple[tuple[Rule, ...], Settings]:
    """The selected rules and the thresholds set for them. Raises UsageError for unknown names.

    trace, counters: whether there is a recording, and a report of Nsight Compute. Without it, rules that need
    it apply only where they are named.
    """
    from profiling_lab.rules import COUNTER_RULES, RULES, load_rules, parse_settings, select

    of_yours = tuple(rule for path in paths_of(rules_from) for rule in load_rules(Path(path)))
    rules = (*RULES, *COUNTER_RULES, *of_yours)
    if only is None:
        names = {rule.name for rule in rules}
        select(rules, skip=[name for name in names_of(skip) if name not in names])
        left = (*(RULES if trace else ()), *(COUNTER_RULES if counters else ()), *of_yours)
        only = [rule.name for rule in left]
    if isinstance(thresholds, Mapping):
        thresholds = [f"{name}={value}" for name, value in thresholds.items()]
    settings = parse_settings(
        [thresholds] if isinstance(thresholds, str) else list(thresholds), select(rules)
    )
    return select(rules, None if only is None else names_of(only), names_of(skip)), settings


def names_of(given: Names) -> list[str]:
    """`a,b-c`, or each name on its own, as names of rules."""
    parts = given.split(",") if isinstance(given, str) else given
    return [name.strip().replace("-", "_") for name in parts if name.strip()]
