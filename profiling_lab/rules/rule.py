# SPDX-License-Identifier: Apache-2.0
"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiling_lab.rules.finding import Threshold, Verdict
from profiling_lab.rules.view import View


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
