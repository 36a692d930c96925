# SPDX-License-Identifier: Apache-2.0
"""The exercises: one folder each, all of them in CATALOGUE, one engine for all.

To add one: make its folder (README.md, the starter, answer.toml, grade.py with EXERCISE, solutions/,
recorded/) and add its name here. tests/exercises/test_catalogue.py then proves it: the untouched starter
fails, the solution passes, the mistakes it declares are rejected, and the README has a symptom, a task and
hints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiling_lab.errors import UsageError

if TYPE_CHECKING:
    from profiling_lab.exercises.exercise import Exercise

__all__ = ["CATALOGUE", "catalogue", "find"]

CATALOGUE = ("e17_python_backtrace",)


def catalogue() -> tuple[Exercise, ...]:
    """All exercises, in their order."""
    from importlib import import_module

    return tuple(import_module(f"profiling_lab.exercises.{name}.grade").EXERCISE for name in CATALOGUE)


def find(name: str) -> Exercise:
    """The exercise of that slug ("python-backtrace"), number ("e17") or old path. Raises UsageError where
    there is none.
    """
    wanted = name.strip("/").lower()
    exercises = catalogue()
    for exercise in exercises:
        if wanted in exercise.names:
            return exercise
    known = ", ".join(exercise.slug for exercise in exercises)
    raise UsageError(f"there is no exercise called {name!r}; there are: {known}")
