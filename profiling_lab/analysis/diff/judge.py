# SPDX-License-Identifier: Apache-2.0
"""The noise of both sides of a comparison, and budgets held against the side after."""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.diff.measure import IDLE, LineInPhase
from profiling_lab.analysis.diff.noise import (
    MIN_STEPS,
    Interval,
    Sample,
    change_interval,
    interval,
    median_ns,
)
from profiling_lab.analysis.diff.rows import Aligned
from profiling_lab.analysis.diff.verdict import Budget, LimitResult, outcome_of
from profiling_lab.errors import UsageError
from profiling_lab.trace.columns import I64


class Noise:
    """The samples of both sides, or none where there are too few steps."""

    def __init__(self, aligned: Aligned) -> None:
        sides = (aligned.before, aligned.after)
        enough = min(len(side) for side in sides) >= MIN_STEPS
        self._samples = [Sample(side.capture_of_step, i) for i, side in enumerate(sides)] if enough else []

    def change(self, before: I64, after: I64) -> Interval | None:
        """Of after minus before."""
        if not self._samples:
            return None
        theirs, ours = self._samples
        return change_interval(theirs, before, ours, after)

    def after(self, values: I64) -> Interval | None:
        """Of a value on the side after."""
        return interval(self._samples[1], values) if self._samples else None


def judge(budget: Budget, aligned: Aligned, noise: Noise) -> LimitResult:
    """Hold what a thing takes after the change against its budget.

    Raises UsageError if neither side has such a thing.
    """
    after = aligned.after
    file, line = "", 0
    if budget.subject == "step":
        values = after.step_ns
    elif budget.subject in ("idle", "gpu"):
        idle = np.array([place.phase == IDLE for place, _ in aligned.leaves], dtype=bool)
        values = after.leaf_ns[:, idle if budget.subject == "idle" else ~idle].sum(axis=1)
    else:
        columns = [i for i, leaf in enumerate(aligned.leaves) if _matches(budget, *leaf)]
        if not columns:
            raise UsageError(f"the budget {budget.text!r} names something that no recording has")
        values = after.leaf_ns[:, columns].sum(axis=1)
        place = aligned.leaves[columns[0]][0]
        file, line = (place.file, place.line) if budget.subject != "kernel" else ("", 0)
    limit_ns, found = budget.limit.of(median_ns(after.step_ns)), noise.after(values)
    return LimitResult(
        budget.text, limit_ns, median_ns(values), found, outcome_of(found, limit_ns), file, line
    )


def _matches(budget: Budget, place: LineInPhase, kernel: str) -> bool:
    if place.phase == IDLE:
        return False
    if budget.subject == "kernel":
        return kernel == budget.name
    if budget.subject == "function":
        return place.function == budget.name
    # The end of a path is enough: the recording may come from another machine.
    return bool(place.file) and f"/{place.file}:{place.line}".endswith(f"/{budget.name.lstrip('/')}")
