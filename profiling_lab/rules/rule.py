# SPDX-License-Identifier: Apache-2.0
"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from profiling_lab.rules.finding import Threshold, Verdict
from profiling_lab.rules.view import View


class Time(Enum):
    """What a rule's costs are made of."""

    IDLE = "the GPU's idle time, or the host's that leads to it"
    BUSY = "the GPU's busy time"
    OTHER = "something else, or both"


@dataclass(frozen=True, slots=True)
class Rule:
    """`check` gives findings, an empty sequence where there is nothing to find, or abstains."""

    name: str
    """the name of the rule's file"""
    question: str
    thresholds: tuple[Threshold, ...]
    check: Callable[[View], Verdict]
    about: str = ""
    """what it looks at, how it decides and what to make of it: the docstring of its file"""
    time: Time = Time.OTHER
    symptom: bool = False
    """it describes what is slow, and other rules say why (see fold.py)"""
    generic: bool = False
    """other causes at the same line say more"""
    wins_frac: float = 1.0
    """how much of the cost the remedy usually wins"""
