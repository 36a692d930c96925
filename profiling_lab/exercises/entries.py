# SPDX-License-Identifier: Apache-2.0
"""The entries of catalogue.toml, and the names by which a learner can find one."""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from profiling_lab.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Entry:
    """One exercise of the curriculum, existing or planned."""

    number: int
    slug: str
    module: str
    title: str
    stars: int
    minutes: int
    needs: tuple[str, ...]
    aliases: tuple[str, ...]
    """Paths of the exercise in the original curriculum."""

    @property
    def label(self) -> str:
        return f"E{self.number:02d} {self.slug}"

    @property
    def package(self) -> str:
        return f"e{self.number:02d}_{self.slug.replace('-', '_')}"

    @property
    def folder(self) -> Path:
        """The folder of the exercise inside the package, if it exists."""
        return HERE / self.package

    @property
    def is_built(self) -> bool:
        return (self.folder / "grade.py").is_file()

    @property
    def names(self) -> tuple[str, ...]:
        """All names accepted by `exercise start`, normalised by `spelled`."""
        tails = [alias.rpartition("/")[2] for alias in self.aliases]
        own = (self.slug, f"e{self.number:02d}", str(self.number), self.package)
        return tuple(dict.fromkeys(spelled(name) for name in (*own, *self.aliases, *tails)))


@cache
def entries() -> tuple[Entry, ...]:
    """Every exercise, by number."""
    with (HERE / "catalogue.toml").open("rb") as file:
        rows = tomllib.load(file)["exercise"]
    return tuple(
        Entry(**row | {"needs": tuple(row["needs"]), "aliases": tuple(row["aliases"])}) for row in rows
    )


def spelled(name: str) -> str:
    """Normalise a name: `E7`, `e07` and `7` are the same, and so are underscores, spaces and hyphens."""
    text = re.sub(r"[\s_]+", "-", name.strip().lower()).removeprefix("./").strip("/")
    number = re.fullmatch(r"e?0*(\d+)", text)
    return f"e{int(number[1]):02d}" if number else text


def entry(name: str) -> Entry:
    """The exercise with this number, slug or path. Raises UsageError with the closest names if there is
    none.
    """
    wanted = spelled(name)
    for each in entries():
        if wanted in each.names:
            return each
    run_together = [each for each in entries() if wanted == each.slug.replace("-", "")]
    if run_together:
        return run_together[0]
    known = {spelling: each for each in entries() for spelling in each.names}
    near = dict.fromkeys(known[spelling].label for spelling in difflib.get_close_matches(wanted, known, n=3))
    advice = f"did you mean {' or '.join(near)}?" if near else "`profiling-lab exercise list` shows all"
    raise UsageError(f"there is no exercise called {name!r}: {advice}")
