# SPDX-License-Identifier: Apache-2.0
"""Read the learner's answer.toml. A wrong type is an error, an empty answer is None."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling_lab.errors import UnreadableInputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "answer.toml"


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers by dotted key ("finding.layer"). Empty text and zero mean: not answered yet."""

    values: Mapping[str, object]
    source: str = FILE

    def text(self, key: str) -> str | None:
        return self._typed(key, str, "text in quotes") or None

    def integer(self, key: str) -> int | None:
        return self._typed(key, int, "a whole number") or None

    def number(self, key: str) -> float | None:
        value: float | None = self._typed(key, (int, float), "a number")
        return float(value) if value else None

    def texts(self, key: str) -> list[str] | None:
        given = self._typed(key, list, 'a list of texts: ["...", "..."]') or None
        if given is not None and not all(isinstance(each, str) for each in given):
            raise UnreadableInputError(
                f"{self.source}: {key} must be a list of texts in quotes, not {given!r}"
            )
        return given

    def replaced(self, changes: Mapping[str, object]) -> Answers:
        """The same answers with `changes` applied."""
        return Answers({**self.values, **changes}, self.source)

    def _typed(self, key: str, kind: type | tuple[type, ...], wanted: str) -> Any:
        value = self.values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise UnreadableInputError(f"{self.source}: {key} must be {wanted}, not {value!r}")
        return value


def is_near(given: float, right: float, slack: float, slack_frac: float) -> bool:
    """Whether a number is right: `slack` is in its unit, `slack_frac` a fraction of the right one."""
    return abs(given - right) <= max(slack, slack_frac * abs(right))


def read(folder: Path) -> Answers:
    """The answers in `folder`. Raises UnreadableInputError if there are none or they are not valid TOML."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except FileNotFoundError:
        raise UnreadableInputError(
            f"there is no {FILE} in {folder}: run this in a folder made by `profiling-lab exercise start`"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnreadableInputError(f"{path} is not valid TOML: {error}") from None
    return Answers(dict(_flat(tree)), str(path))


def _flat(tree: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    items: list[tuple[str, object]] = []
    for key, value in tree.items():
        items += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)]
    return items
