# SPDX-License-Identifier: Apache-2.0
"""What a rule is, what it finds, and how it says that it could not tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from profiling_lab.trace import Frame

if TYPE_CHECKING:
    from profiling_lab.rules.view import View

EVIDENCE_AT_MOST = 20


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that decides, and who says that it should be this one."""

    what: str
    value: float
    unit: str
    source: str


WORTH = Threshold("least cost", 0.001, "of the recording", "ours: less is lost in the spread of steps")


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a table of the trace: `trace.operations`, `trace.calls` or `trace.ranges`."""

    table: str
    row: int
    start_ns: int

    def __str__(self) -> str:
        return f"{self.table}[{self.row}]"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `run` fills in the name of the rule."""

    what: str
    """a sentence with its numbers"""
    cost_ns: int
    """the most that a remedy can win, counted as `cost_of` says"""
    cost_of: str
    place: Frame | None
    """the line to look at; None where the trace names none"""
    evidence: tuple[Event, ...]
    """the weightiest events, at most EVIDENCE_AT_MOST of them"""
    events: int
    """how many events there are"""
    remedy: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Abstain:
    """The rule could not tell, and why: what is missing, and what would have recorded it."""

    reason: str


Verdict: TypeAlias = Sequence[Finding] | Abstain


@dataclass(frozen=True, slots=True)
class Rule:
    """`check` gives findings, an empty sequence where there is nothing to find, or abstains."""

    name: str
    """the name of the rule's file"""
    question: str
    thresholds: tuple[Threshold, ...]
    check: Callable[[View], Verdict]


def ms(ns: float) -> str:
    """`12.345 ms`: findings are compared by eye, so all of them speak milliseconds."""
    return f"{ns / 1e6:,.3f} ms"


def percent(frac: float) -> str:
    return f"{100 * frac:.1f} %"
