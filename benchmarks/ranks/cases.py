# SPDX-License-Identifier: Apache-2.0
"""The golden cases: programs of several ranks with a planted delay, and what must be said of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
AS_IT_IS = "as it is"
_PLANTED = re.compile(r"# planted: (\w+)$")


@dataclass(frozen=True)
class Delay:
    rank: int
    causes: tuple[str, ...]
    """words of `ranks` that are right"""
    name: str = "delay"
    line: bool = True
    """a line of the program is at fault"""


@dataclass(frozen=True)
class Expected:
    """Collectives of one kind, as each rank makes them in each step."""

    kind: str
    per_step: int
    bytes: int | None = None
    """of a message, where all are equal"""
    neighbours: bool = False
    """per link of a chain of ranks, on each end of it"""
    exactly: bool = True
    """there are no others of this kind and size"""


@dataclass(frozen=True)
class Case:
    name: str
    delays: tuple[Delay, ...] = ()
    kinds: tuple[str, ...] = ()
    """verdicts that are right where no rank is delayed"""
    mended: str = ""
    """what is mended where no rank is delayed: transfers"""
    alone: bool = False
    graph_nodes: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    collectives: tuple[Expected, ...] = ()
    program: str = ""
    """its name, where that is not the case's"""

    @property
    def path(self) -> Path:
        return PROGRAMS / f"{self.program or self.name}.py"

    @property
    def ways(self) -> dict[str, tuple[str, ...]]:
        """How the program is timed, by name, and what is mended then: nothing, and each delay alone."""
        out: dict[str, tuple[str, ...]] = {AS_IT_IS: ()}
        if self.mended:
            out["without delay"] = ("delay",)
        return out | {f"without {delay.name}": (delay.name,) for delay in self.delays}

    def lines(self, name: str) -> list[int]:
        """Where a delay is planted."""
        text = self.path.read_text().splitlines()
        found = ((number, _PLANTED.search(line)) for number, line in enumerate(text, 1))
        return [number for number, match in found if match and match[1] == name]


def cases() -> dict[str, Case]:
    """All of them, the most important ones first."""
    return {name: _case(name, facts) for name, facts in _truth().items()}


def _truth() -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / "truth.toml").read_text())


def _case(name: str, facts: dict[str, Any]) -> Case:
    return Case(
        name=name,
        delays=tuple(
            Delay(**delay | {"causes": tuple(delay["causes"])}) for delay in facts.pop("delays", ())
        ),
        kinds=tuple(facts.pop("kinds", ())),
        collectives=tuple(Expected(**each) for each in facts.pop("collectives", ())),
        **facts,
    )
