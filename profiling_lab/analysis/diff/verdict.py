# SPDX-License-Identifier: Apache-2.0
"""Limits that a change or a value must keep, and what follows about them in spite of the noise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from profiling_lab.analysis.diff.noise import Interval
from profiling_lab.errors import UsageError
from profiling_lab.records import dataclass

State: TypeAlias = Literal["faster", "slower", "within the noise", "undecided"]
Outcome: TypeAlias = Literal["pass", "fail", "undecided"]

_UNIT_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_UNIT_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-zµ]+|%)")
_SUBJECTS = ("step", "gpu", "idle", "line", "function", "kernel")
_SYNONYMS = {"gaps": "idle", "gpu_idle": "idle", "total": "step"}


@dataclass(frozen=True, slots=True)
class Limit:
    """So many nanoseconds or bytes, or such a share of the step or of the peak."""

    text: str
    amount: int | None
    frac: float | None

    def of(self, whole: int) -> int:
        return self.amount if self.amount is not None else round((self.frac or 0.0) * whole)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one thing may take per step, after the change."""

    text: str
    subject: str
    """'step', 'gpu' (all GPU time), 'idle', 'line', 'function' or 'kernel'"""
    name: str
    """which line (`model.py:87`), function or kernel"""
    limit: Limit


@dataclass(frozen=True, slots=True)
class LimitResult:
    """A limit, the value that was held against it, and the outcome."""

    text: str
    limit_ns: int
    value_ns: int
    interval: Interval | None
    outcome: Outcome
    file: str = ""
    line: int = 0

    @property
    def is_noise(self) -> bool:
        """Where it is undecided: by the noise, not for too few steps."""
        return self.interval is not None


def parse_limit(text: str) -> Limit:
    """`3%`, `2ms`, `500us`. Raises UsageError for anything else."""
    return _limit(text, _UNIT_NS, "3%, 2ms or 500us")


def parse_memory_limit(text: str) -> Limit:
    """`5%`, `512MiB`, `2GB`. Raises UsageError for anything else."""
    return _limit(text, _UNIT_BYTES, "5%, 512MiB or 2GB")


def _limit(text: str, units: Mapping[str, int], examples: str) -> Limit:
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[2] not in (*units, "%"):
        raise UsageError(f"expected a limit like {examples}, not {text!r}")
    amount, unit = float(match[1]), match[2]
    if unit == "%":
        return Limit(text.strip(), None, amount / 100)
    return Limit(text.strip(), round(amount * units[unit]), None)


def parse_budget(text: str) -> Budget:
    """`step<130ms`, `idle<5%`, `gpu<90ms`, `line:model.py:87<3ms`, `function:f<3ms`, `kernel:gemm<1ms`.

    Raises UsageError for anything else.
    """
    # A kernel's name may hold `<` too: the limit follows the last one.
    left, mark, right = text.rpartition("<")
    subject, _, name = left.strip().partition(":")
    subject = _SYNONYMS.get(subject, subject)
    needs_name = subject in ("line", "function", "kernel")
    if not mark or subject not in _SUBJECTS or needs_name != bool(name):
        raise UsageError(
            f"expected a budget like step<130ms, idle<5%, gpu<90ms, line:model.py:87<3ms, "
            f"function:Net.forward<3ms or kernel:gemm<1ms, not {text!r}"
        )
    if subject == "line" and not re.fullmatch(r".+:\d+", name):
        raise UsageError(f"expected a line like model.py:87, not {name!r}")
    return Budget(text.strip(), subject, name, parse_limit(right))


def state_of(change: Interval | None) -> State:
    """The outcome of a change whose interval is known."""
    if change is None:
        return "undecided"
    if change.high_ns < 0:
        return "faster"
    if change.low_ns > 0:
        return "slower"
    return "within the noise"


def outcome_of(found: Interval | None, limit_ns: int) -> Outcome:
    """Over the limit, within it, or the limit is inside of the noise."""
    if found is None:
        return "undecided"
    if found.low_ns > limit_ns:
        return "fail"
    return "pass" if found.high_ns <= limit_ns else "undecided"
