# SPDX-License-Identifier: Apache-2.0
"""The exercises. catalogue.toml lists all of them; each one that exists has a folder.

To add one: make its folder (README.md, the starter, answer.toml, grade.py with EXERCISE, solutions/,
recorded/) and its entry in catalogue.toml. tests/exercises/ then tests it: the unchanged starter fails, the
solution passes, its declared mistakes are rejected, and the README has a symptom, a task and hints.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from profiling_lab.errors import UsageError
from profiling_lab.exercises.entries import Entry, entries, entry

if TYPE_CHECKING:
    from profiling_lab.exercises.exercise import Exercise

__all__ = ["Entry", "catalogue", "entries", "find"]


def catalogue() -> tuple[Exercise, ...]:
    """All exercises that exist, by number."""
    return tuple(_load(each) for each in entries() if each.is_built)


def find(name: str) -> Exercise:
    """The exercise with this number ("25", "E25"), slug in any spelling, or path. Raises UsageError if there
    is none.
    """
    found = entry(name)
    if not found.is_built:
        ready = ", ".join(f"E{each.number:02d}" for each in entries() if each.is_built)
        raise UsageError(
            f"{found.label} ({found.title}) is planned but does not exist yet; there are {ready}"
        )
    return _load(found)


def _load(found: Entry) -> Exercise:
    exercise: Exercise = import_module(f"profiling_lab.exercises.{found.package}.grade").EXERCISE
    return exercise
