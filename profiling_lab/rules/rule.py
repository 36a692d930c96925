# SPDX-License-Identifier: Apache-2.0
"""The declaration of a rule."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from profiling_lab.records import dataclass
from profiling_lab.rules.finding import SEVERITIES, RuleResult, Severity, Threshold, severity_of
from profiling_lab.rules.view import View


class Time(Enum):
    """The kind of time that a rule's costs consist of."""

    IDLE = "the GPU's idle time, or host time that leads to it"
    BUSY = "the GPU's busy time"
    OTHER = "something else, or both"


@dataclass(frozen=True, slots=True)
class Rule:
    """`check` returns findings, an empty sequence if nothing is wrong, or Abstain."""

    name: str
    """the name of the rule's file"""
    question: str
    thresholds: tuple[Threshold, ...]
    check: Callable[[View], RuleResult]
    about: str = ""
    """what it looks at, how it decides and how to read it: the docstring of its file"""
    time: Time = Time.OTHER
    symptom: bool = False
    """the rule describes what is slow, and other rules say why (see fold.py)"""
    conditional: bool = False
    """a symptom with a remedy of its own, of which the recording does not tell whether it can be applied: it
    says what that would win"""
    generic: bool = False
    """other causes at the same line are more specific"""
    adds: bool = False
    """its cost is no part of that of another cause at the same line: both are saved"""
    all_lines: bool = False
    """a finding of it covers all lines, so it explains the idle time of this cause at any of them"""
    of_host: bool = False
    """its remedy changes what the host does at a line, with the waits and copies that go with it"""
    severity_at_least: Severity = "low"
    """what the rule finds costs no time, but something else"""
    severity_at_most: Severity = "high"
    """what the rule finds is in healthy programs, too"""
    wins_frac: float = 1.0
    """the fraction of the cost that the remedy usually saves; it ranks findings until their gain is known"""

    def severity(self, saves_ns: float, span_ns: int) -> Severity:
        """Of what a finding of this rule saves."""
        return min(severity_of(saves_ns, span_ns), self.severity_at_least, key=list(SEVERITIES).index)
